#include "text/utf8.h"

#include <algorithm>

namespace quarot {
namespace {

unsigned char byte_at(std::string_view text, size_t i) {
  return static_cast<unsigned char>(text[i]);
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What may follow a lead byte: how many bytes in all, and the range of the second.
struct Lead {
  int length;
  unsigned char low;
  unsigned char high;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0xC2 || byte > 0xF4) return {1, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {4, 0x80, 0xBF};
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const unsigned char first = byte_at(text, 0);
  if (first < 0x80) return {1, true, false};
  auto [length, low, high] = lead_of(first);
  if (length == 1) return {1, false, false};
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {i, false, true};
    const unsigned char next = byte_at(text, static_cast<size_t>(i));
    if (next < low || next > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (!step.valid) return false;
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  return true;
}

std::string lossy_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    const auto length = static_cast<size_t>(step.length);
    text += step.valid ? bytes.substr(0, length) : kReplacement;
    bytes.remove_prefix(length);
  }
  return text;
}

size_t complete_utf8_prefix(std::string_view bytes) {
  // A sequence cut short is at most three bytes long, and starts with its lead byte.
  const size_t longest = std::min<size_t>(3, bytes.size());
  for (size_t tail = 1; tail <= longest; ++tail) {
    const size_t start = bytes.size() - tail;
    if (byte_at(bytes, start) < 0x80) break;
    if (const Utf8Step step = utf8_step(bytes.substr(start));
        step.truncated && static_cast<size_t>(step.length) == tail)
      return start;
  }
  return bytes.size();
}

std::string escape_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() + bytes.size() / 2);
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    for (int i = 0; i < step.length; ++i) {
      if (step.valid) {
        text += bytes[static_cast<size_t>(i)];
      } else {
        append_utf8(text, 0xDC00U + byte_at(bytes, static_cast<size_t>(i)));
      }
    }
    bytes.remove_prefix(static_cast<size_t>(step.length));
  }
  return text;
}

CodePoint first_code_point(std::string_view text) {
  const unsigned char first = byte_at(text, 0);
  if (first < 0x80) return {first, 1};
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (length > text.size()) return {0xFFFD, text.size()};
  char32_t value = first & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i) value = value << 6 | (byte_at(text, i) & 0x3F);
  return {value, length};
}

void append_utf8(std::string& text, char32_t value) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (value < 0x80) return put(value);
  if (value < 0x800) {
    put(0xC0 | value >> 6);
  } else if (value < 0x10000) {
    put(0xE0 | value >> 12);
    put(0x80 | (value >> 6 & 0x3F));
  } else {
    put(0xF0 | value >> 18);
    put(0x80 | (value >> 12 & 0x3F));
    put(0x80 | (value >> 6 & 0x3F));
  }
  put(0x80 | (value & 0x3F));
}

bool is_white_space(char32_t value) {
  if (value < 0x80) return value == ' ' || (value >= '\t' && value <= '\r');
  return value == 0x85 || value == 0xA0 || value == 0x1680 ||
         (value >= 0x2000 && value <= 0x200A) || value == 0x2028 || value == 0x2029 ||
         value == 0x202F || value == 0x205F || value == 0x3000;
}

}  // namespace quarot
