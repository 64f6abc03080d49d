// What happens to the text before it is cut into words.
// https://huggingface.co/docs/tokenizers/api/normalizers
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace quarot {

class Normalizer {
 public:
  // UAX #15. Linear but for sorting each run of combining marks.
  struct UnicodeForm {
    bool compose;
    bool compatibility;
  };
  struct Lowercase {};
  struct Strip {
    bool left;
    bool right;
  };
  struct Prepend {  // to text that is not empty
    std::string prefix;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct CollapseSpaces {};  // SentencePiece's remove_extra_whitespaces: none at the ends, no two
  using Step = std::variant<UnicodeForm, Lowercase, Strip, Prepend, Replace, CollapseSpaces>;

  void add(Step step);
  bool is_identity() const { return steps_.empty(); }

  // Text in and out is as escape_invalid_utf8() leaves it.
  std::string apply(std::string_view text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace quarot
