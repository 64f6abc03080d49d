// What every tokenizer fuzzer does with what it opened.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace quarot::fuzz {

inline std::string_view text_of(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

// Every id must be a token's, and pushing the ids one by one must give the whole text.
inline void use(const Result<std::unique_ptr<Tokenizer>>& opened) {
  if (!opened.ok()) return;
  const Tokenizer& tokenizer = **opened;
  StreamDecoder stream(tokenizer, false);
  std::string text;
  const auto ids = tokenizer.encode("abba  <s>12\n\u00e9e\u0301\u65e5\xFF\xC3 <|im_end|>");
  for (const Token id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    text += stream.push(id);
  }
  text += stream.finish();
  if (text != tokenizer.decode(ids) || !is_valid_utf8(text)) std::abort();
}

}  // namespace quarot::fuzz
