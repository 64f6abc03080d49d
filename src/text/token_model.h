// What makes ids of words: byte-pair encoding or a unigram language model.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace quarot {

class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // Appends the ids of the words, which make up one text. Thread-safe.
  virtual void encode(std::span<const std::string_view> words, std::vector<Token>& out) const = 0;
};

}  // namespace quarot
