// Merges as files list them, best first: pairs of tokens whose joint content is a token.
#pragma once

#include <string_view>
#include <vector>

#include "quarot/status.h"
#include "text/bpe.h"

namespace quarot {

class MergeList {
 public:
  explicit MergeList(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}

  // The next merge, of two tokens, or as "left right". The error names a token that is not there.
  Status add(std::string_view left, std::string_view right);
  Status add(std::string_view line);

  const std::vector<Bpe::Merge>& merges() const { return merges_; }

 private:
  const Vocabulary* vocabulary_;
  std::vector<Bpe::Merge> merges_;
};

}  // namespace quarot
