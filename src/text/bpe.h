// Byte-pair encoding: neighbouring symbols merge, the pair of lowest rank first, the leftmost of
// equals, until no pair is known. Sennrich, Haddow & Birch 2016, https://aclanthology.org/P16-1162,
// section 3.2. A heap over a linked list: O(n log n) in the length of a word.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/token_model.h"
#include "text/unknown.h"
#include "text/vocabulary.h"

namespace quarot {

class Bpe final : public TokenModel {
 public:
  struct Merge {
    Token left;
    Token right;
    Token result;
    uint32_t rank;
  };
  struct Options {
    bool byte_level = false;   // symbols are the bytes, in GPT-2's alphabet; else the characters
    bool whole_words = false;  // a word that is a token is that token ("ignore_merges")
    UnknownCharacters unknown;
  };

  // A pair given twice has the later rank. The vocabulary must outlive the model.
  Bpe(const Vocabulary& vocabulary, std::span<const Merge> merges, Options options);

  // What is remembered of words met before lives for one call.
  void encode(std::span<const std::string_view> words, std::vector<Token>& out) const override;

 private:
  struct Symbol;
  struct Candidate;
  struct Workspace;
  struct Slot {
    uint64_t pair;
    uint32_t rank;
    Token result;  // −1: the slot is free
  };

  const Slot* find(Token left, Token right) const;
  void insert(const Merge& merge);
  void note_neighbours(std::string_view content);
  bool may_join(char32_t left, char32_t right) const;
  void encode_word(std::string_view word, size_t begin, Workspace& work,
                   std::vector<Token>& out) const;
  void append_remembered(std::string_view word, size_t begin, Workspace& work,
                         std::vector<Token>& out) const;
  void load_symbols(std::string_view word, Workspace& work) const;
  void merge_symbols(Workspace& work) const;
  void propose(uint32_t left, Workspace& work) const;

  const Vocabulary* vocabulary_;
  Options options_;
  std::array<Token, 256> byte_symbols_{};  // of single bytes (byte level) or ASCII characters; −1
  std::vector<Slot> slots_;                // open addressing, at most half full
  unsigned slot_shift_ = 0;
  std::vector<uint64_t> neighbours_;  // which characters stand side by side in some merged token
};

// The merges that SentencePiece and tiktoken imply: two tokens merge whenever what they spell
// together is a token, that of the best rank first. `ranked` holds the tokens that may come about
// and their ranks (equal ones allowed).
struct RankedToken {
  Token token;
  uint32_t rank;
};
std::vector<Bpe::Merge> implied_merges(const Vocabulary& vocabulary,
                                       std::span<const RankedToken> ranked);

}  // namespace quarot
