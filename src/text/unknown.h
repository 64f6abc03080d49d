// What a model makes of a character that its vocabulary does not have.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace quarot {

class UnknownCharacters {
 public:
  UnknownCharacters() = default;
  // `unk`: the token for it, if there is one; `fuse`: one for a whole run. With `byte_fallback`
  // its bytes, where the vocabulary has all of <0x00> … <0xFF>.
  UnknownCharacters(const Vocabulary& vocabulary, std::optional<Token> unk, bool fuse,
                    bool byte_fallback);

  // `begin`: where in `out` the current text begins, so that a run does not join what is before.
  void append(std::string_view character, size_t begin, std::vector<Token>& out) const;

  // Whether `token` after `ids`, what the text gave so far, only lengthens a run of unknowns.
  bool continues_run(Token token, std::span<const Token> ids) const {
    return fuse_ && unk_ == token && !ids.empty() && ids.back() == token;
  }

 private:
  std::optional<Token> unk_;
  std::optional<Token> replacement_;  // U+FFFD, for bytes that are not UTF-8
  bool fuse_ = false;
  std::optional<std::array<Token, 256>> bytes_;
};

// The 256 tokens <0x00> … <0xFF>, if all are there.
std::optional<std::array<Token, 256>> byte_tokens(const Vocabulary& vocabulary);

// The byte that the content of a byte token ("<0x0A>") stands for.
std::optional<char> byte_token_value(std::string_view content);

}  // namespace quarot
