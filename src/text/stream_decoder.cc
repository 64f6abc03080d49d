#include <algorithm>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace quarot {
namespace {

size_t leading_spaces(std::string_view text) {
  return std::min(text.find_first_not_of(' '), text.size());
}

}  // namespace

void StreamDecoder::follow(std::span<const Token> tokens) {
  if (!tokens.empty()) at_start_ = skip_special_ && tokenizer_->is_special(tokens.back());
}

std::string StreamDecoder::push(Token token) {
  if (skip_special_ && tokenizer_->is_special(token)) return {};
  std::string bytes = tokenizer_->token_bytes(token);
  if (at_start_ && !bytes.empty()) {
    // What decode() drops at the start of a text is dropped here.
    const std::string alone = tokenizer_->decode(std::span(&token, 1));
    bytes.erase(0, leading_spaces(bytes) - leading_spaces(alone));
    at_start_ = false;
  }
  pending_ += bytes;
  const size_t complete = complete_utf8_prefix(pending_);
  std::string text = lossy_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = lossy_utf8(pending_);
  pending_.clear();
  at_start_ = true;
  return text;
}

}  // namespace quarot
