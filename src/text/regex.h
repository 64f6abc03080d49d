// Regular expressions as tokenizer files write them (Oniguruma's and Rust's common ground), on
// PCRE2. https://www.pcre.org/current/doc/html/pcre2api.html
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "quarot/status.h"

struct pcre2_real_code_8;

namespace quarot {

class Regex {
 public:
  // kCorrupt with the position where the pattern is wrong; kUnsupported where it is too large or
  // says what PCRE2 would understand otherwise.
  static Result<Regex> compile(std::string_view pattern);
  static Regex literal(std::string_view text);  // matches just that, which is not empty

  // Calls visit(begin, end) for each match that is not empty, left to right, without overlap. The
  // text is as escape_invalid_utf8() leaves it. Work is bounded: when a match needs too much
  // backtracking, the rest of the text counts as not matching.
  void for_each_match(std::string_view text, FunctionRef<void(size_t, size_t)> visit) const;

 private:
  Regex() = default;

  std::shared_ptr<pcre2_real_code_8> code_;  // none: a literal. Never written to after compile()
  std::string literal_;
};

}  // namespace quarot
