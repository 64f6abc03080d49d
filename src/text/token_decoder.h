// What each token adds to the text. https://huggingface.co/docs/tokenizers/api/decoders
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quarot {

struct TokenDecoder {
  // What is dropped at the start of a text, where encoding put a space: one space, or all those of
  // the first token.
  enum class StripStart { kNone, kOneSpace, kFirstToken };

  bool byte_level = false;                                        // GPT-2's alphabet
  std::vector<std::pair<std::string, std::string>> replacements;  // in each token, in this order
  bool byte_fallback = false;                                     // "<0x0A>" is that byte
  StripStart strip_start = StripStart::kNone;

  // The bytes of a token with this content.
  std::string bytes(std::string_view content) const;
  // How many bytes to drop from the first token of a text that has any bytes.
  size_t stripped(std::string_view first_bytes) const;
};

// `text` with each `from` (not empty) replaced.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace quarot
