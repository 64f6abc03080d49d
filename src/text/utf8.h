// UTF-8 as tokenizers need it: well-formed text passes through untouched, and what is not well
// formed survives the whole pipeline byte by byte.
#pragma once

#include <string>
#include <string_view>

namespace quarot {

struct Utf8Step {
  int length;      // bytes of one well-formed sequence, or of a maximal ill-formed subpart; never 0
  bool valid;      // whether those bytes encode a scalar value
  bool truncated;  // ill formed only because the text ends too early
};

// The first sequence of a text that is not empty (Unicode 15, table 3-7 and section 3.9, "U+FFFD
// substitution of maximal subparts").
Utf8Step utf8_step(std::string_view text);

bool is_valid_utf8(std::string_view text);

// Well-formed text for any bytes: each ill-formed subpart becomes U+FFFD.
std::string lossy_utf8(std::string_view bytes);

// The length of `bytes` without a sequence cut short at its end.
size_t complete_utf8_prefix(std::string_view bytes);

// Stands byte b that is not UTF-8 as the three bytes of the surrogate U+DC00 + b, which no
// well-formed text contains (Python's "surrogateescape", PEP 383). Everything between encode() and
// the model sees such text.
std::string escape_invalid_utf8(std::string_view bytes);

// The byte that the character at the front of `text` stands for, or −1 if it is an ordinary one.
inline int escaped_byte(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.size() < 3 || byte(0) != 0xED || byte(1) < 0xB2) return -1;
  return (byte(1) & 3) << 6 | (byte(2) & 0x3F);
}

struct CodePoint {
  char32_t value;
  size_t length;
};

// The first character of text that is well formed but for escapes; past the end is never read.
CodePoint first_code_point(std::string_view text);

void append_utf8(std::string& text, char32_t value);

// Unicode's White_Space.
bool is_white_space(char32_t value);

}  // namespace quarot
