// SentencePiece models: BPE and unigram, from tokenizer.model, llama2.c's vocabulary files, or
// GGUF. https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quarot/status.h"
#include "text/tokenizer.h"
#include "text/tokenizer_settings.h"

namespace quarot {

struct SentencePieceModel {
  enum class Algorithm { kUnigram, kBpe };
  // Numbered as in the protocol buffer and in GGUF's token_type.
  enum class Kind { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  struct Piece {
    std::string content;
    float score = 0;
    Kind kind = Kind::kNormal;
  };

  Algorithm algorithm = Algorithm::kUnigram;
  std::vector<Piece> pieces;  // the id of each is its position
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  std::optional<Token> bos;
  std::optional<Token> eos;
};

// The file's bytes, a protocol buffer; fields that do not matter here are passed over.
Result<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes);

// llama2.c's tokenizer.bin: the longest token's length, then for each token its score (float32),
// its length (int32) and its bytes, little-endian, spaces as such.
// https://github.com/karpathy/llama2.c/blob/master/tokenizer.py
Result<SentencePieceModel> parse_llama2c_vocabulary(std::string_view bytes);

Result<std::unique_ptr<Tokenizer>> make_sentencepiece_tokenizer(const SentencePieceModel& model,
                                                                TokenizerSettings settings);

}  // namespace quarot
