// Cuts text into the words that the model encodes one by one.
// https://huggingface.co/docs/tokenizers/api/pre-tokenizers
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace quarot {

class PreTokenizer {
 public:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

  struct Split {
    Regex pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;  // what lies between the matches counts as the match
  };
  struct PrefixSpace {};  // a space before each piece that does not begin with one
  struct Metaspace {
    std::string replacement;  // for each space
    enum class Prepend { kNever, kFirst, kAlways } prepend;
    bool split;  // before each replacement
  };
  using Step = std::variant<Split, PrefixSpace, Metaspace>;

  struct Pieces {
    std::vector<std::string_view> views;  // none empty; into the text or `owned`
    std::deque<std::string> owned;
  };

  void add(Step step);

  // `is_start`: whether the text begins the whole input.
  Pieces split(std::string_view text, bool is_start) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace quarot
