// Unigram language model: of all ways to cut a word into tokens, the one of the largest summed
// score (log probability). Kudo 2018, https://aclanthology.org/P18-1007, section 3.2, by Viterbi's
// algorithm: O(n · the longest token).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "text/prefix_index.h"
#include "text/token_model.h"
#include "text/unknown.h"
#include "text/vocabulary.h"

namespace quarot {

class Unigram final : public TokenModel {
 public:
  static constexpr size_t kMaxPiece = 1024;

  struct Piece {
    Token token;
    double score;  // finite
  };

  // The pieces' contents are at most kMaxPiece bytes long. A character that is no piece scores 10
  // less than the worst piece.
  Unigram(const Vocabulary& vocabulary, std::vector<Piece> pieces, UnknownCharacters unknown);

  void encode(std::span<const std::string_view> words, std::vector<Token>& out) const override;

 private:
  void encode_word(std::string_view word, std::vector<Token>& out) const;

  std::vector<Piece> pieces_;
  PrefixIndex index_;
  UnknownCharacters unknown_;
  double unknown_score_;
};

}  // namespace quarot
