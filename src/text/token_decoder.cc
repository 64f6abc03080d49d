#include "text/token_decoder.h"

#include <algorithm>

#include "text/byte_level.h"
#include "text/unknown.h"

namespace quarot {

std::string TokenDecoder::bytes(std::string_view content) const {
  if (byte_level) {
    // An added token may use characters outside the alphabet; it is then written as it is.
    if (auto bytes = from_byte_alphabet(content)) return *std::move(bytes);
  }
  std::string text(content);
  for (const auto& [from, to] : replacements) text = replace_all(text, from, to);
  if (byte_fallback) {
    if (const auto byte = byte_token_value(text)) return std::string(1, *byte);
  }
  return text;
}

size_t TokenDecoder::stripped(std::string_view first_bytes) const {
  const size_t spaces = std::min(first_bytes.find_first_not_of(' '), first_bytes.size());
  switch (strip_start) {
    case StripStart::kNone:
      return 0;
    case StripStart::kOneSpace:
      return std::min<size_t>(spaces, 1);
    case StripStart::kFirstToken:
      return spaces;
  }
  return 0;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    result += text.substr(done, at - done);
    result += to;
    done = at + from.size();
  }
  result += text.substr(done);
  return result;
}

}  // namespace quarot
