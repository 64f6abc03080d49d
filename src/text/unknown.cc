#include "text/unknown.h"

#include <fmt/format.h>

#include <charconv>

#include "text/utf8.h"

namespace quarot {

std::optional<std::array<Token, 256>> byte_tokens(const Vocabulary& vocabulary) {
  std::array<Token, 256> tokens{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto id = vocabulary.id(fmt::format("<0x{:02X}>", byte));
    if (!id) return std::nullopt;
    tokens[byte] = *id;
  }
  return tokens;
}

std::optional<char> byte_token_value(std::string_view content) {
  if (content.size() != 6 || !content.starts_with("<0x") || content[5] != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, status] = std::from_chars(content.data() + 3, content.data() + 5, value, 16);
  if (status != std::errc() || end != content.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

UnknownCharacters::UnknownCharacters(const Vocabulary& vocabulary, std::optional<Token> unk,
                                     bool fuse, bool byte_fallback)
    : unk_(unk), replacement_(vocabulary.id("\uFFFD")), fuse_(fuse) {
  if (byte_fallback) bytes_ = byte_tokens(vocabulary);
}

void UnknownCharacters::append(std::string_view character, size_t begin,
                               std::vector<Token>& out) const {
  const int escaped = escaped_byte(character);
  if (bytes_) {
    if (escaped >= 0) {
      out.push_back((*bytes_)[static_cast<size_t>(escaped)]);
    } else {
      for (const char byte : character) out.push_back((*bytes_)[static_cast<unsigned char>(byte)]);
    }
  } else if (escaped >= 0 && replacement_) {
    out.push_back(*replacement_);
  } else if (unk_ && !continues_run(*unk_, std::span(out).subspan(begin))) {
    out.push_back(*unk_);
  }
}

}  // namespace quarot
