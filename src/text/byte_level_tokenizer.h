// Byte-level BPE in the formats that leave the words to the reader: rank files (tiktoken) and
// GPT-2's vocab.json with merges.txt.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "quarot/status.h"
#include "text/bpe.h"
#include "text/tokenizer_pipeline.h"
#include "text/word_patterns.h"

namespace quarot {

// Fills in all but the vocabulary and the added tokens.
Status complete_byte_level(TokenizerParts& parts, std::span<const Bpe::Merge> merges,
                           const WordPatterns& words);

// A rank file: lines of a token in base64 and its rank, which is also its id. The patterns and the
// special tokens go by the file's name ("qwen", "cl100k_base", …), else by the number of ranks;
// kUnsupported lists what is known. https://github.com/openai/tiktoken
Result<std::unique_ptr<Tokenizer>> parse_rank_file(std::string_view text, std::string_view name,
                                                   TokenizerSettings settings);

// Whether the file begins like a rank file.
bool looks_like_rank_file(std::string_view text);

// vocab.json and merges.txt, contents of; words are cut as GPT-2 does.
Result<std::unique_ptr<Tokenizer>> parse_vocab_and_merges(std::string_view vocab,
                                                          std::string_view merges,
                                                          TokenizerSettings settings);

}  // namespace quarot
