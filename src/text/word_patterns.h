// The regular expressions by which well-known byte-level tokenizers cut text into words, for the
// formats that do not carry theirs: GGUF names it, a rank file leaves it to its reader.
#pragma once

#include <span>
#include <string_view>

#include "quarot/status.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace quarot {

struct WordPatterns {
  std::span<const std::string_view> patterns;  // each cuts the pieces of the one before
  bool nfc = false;                            // the model was trained on text in this form
  bool whole_words = false;                    // words that are tokens are not taken apart
  bool adds_bos = false;
};

// By the name in GGUF's tokenizer.ggml.pre; kUnsupported lists the names that are known.
Result<WordPatterns> word_patterns(std::string_view name);

Result<PreTokenizer> make_pre_tokenizer(const WordPatterns& words);

extern const std::string_view kGpt2Words;

}  // namespace quarot
