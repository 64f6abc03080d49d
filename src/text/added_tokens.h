// Tokens that stand outside the model: found in the text as written, before it is cut into words.
// https://huggingface.co/docs/tokenizers/api/added-tokens
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quarot/status.h"
#include "text/prefix_index.h"
#include "text/tokenizer.h"

namespace quarot {

struct AddedToken {
  Token id = 0;
  std::string content;
  std::string pattern;  // what is looked for: the content, normalised if `normalized`
  bool special = false;
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool single_word = false;  // only between characters that are no letters, digits or underscores
  bool normalized = false;   // looked for in the normalised text
};

// The longest added token at each position, left to right, of one kind (normalised or not).
class AddedTokens {
 public:
  static constexpr size_t kMaxLength = 1024;

  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Segment {
    std::string_view text;       // not empty
    std::optional<Token> token;  // which the text is; none: ordinary text
  };
  std::vector<Segment> split(std::string_view text, bool parse_special) const;

 private:
  struct Match {
    const AddedToken* token;
    size_t begin;
    size_t end;
  };
  std::optional<Match> match_at(std::string_view text, size_t at, size_t last_end,
                                bool parse_special) const;

  std::vector<AddedToken> tokens_;
  PrefixIndex index_;
};

}  // namespace quarot
