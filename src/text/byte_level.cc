#include "text/byte_level.h"

#include "text/utf8.h"

namespace quarot {
namespace {

constexpr char32_t kEnd = 0x144;  // 68 bytes are not printable

bool is_printable(char32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

std::array<char32_t, 256> code_points() {
  std::array<char32_t, 256> result{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) result[byte] = is_printable(byte) ? byte : next++;
  return result;
}

}  // namespace

const std::array<std::string, 256>& byte_alphabet() {
  static const auto alphabet = [] {
    std::array<std::string, 256> result;
    const auto points = code_points();
    for (size_t byte = 0; byte < 256; ++byte) append_utf8(result[byte], points[byte]);
    return result;
  }();
  return alphabet;
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += byte_alphabet()[static_cast<unsigned char>(byte)];
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  static const auto byte_of = [] {
    std::array<int, kEnd> result{};
    result.fill(-1);
    const auto points = code_points();
    for (int byte = 0; byte < 256; ++byte) result[points[static_cast<size_t>(byte)]] = byte;
    return result;
  }();
  std::string bytes;
  while (!text.empty()) {
    const auto [value, length] = first_code_point(text);
    if (value >= kEnd || byte_of[value] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_of[value]);
    text.remove_prefix(length);
  }
  return bytes;
}

}  // namespace quarot
