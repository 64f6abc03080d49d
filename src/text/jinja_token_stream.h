// The parser's view of the tokens: one at hand, one ahead, and how deep it has gone.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/jinja_lexer.h"

namespace quarot::jinja {

class TokenStream {
 public:
  TokenStream(std::string_view source, std::vector<Token> tokens)
      : source_(source), tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  uint32_t offset() const { return current().offset; }

  bool at(Token::Kind kind) const { return current().kind == kind; }
  bool at(Token::Kind kind, std::string_view text) const {
    return at(kind) && current().text == text;
  }
  bool at_operator(std::string_view text) const { return at(Token::Kind::kOperator, text); }
  bool at_name(std::string_view text) const { return at(Token::Kind::kName, text); }
  bool take_operator(std::string_view text) { return take_if(at_operator(text)); }
  bool take_name(std::string_view text) { return take_if(at_name(text)); }

  Status expect_operator(std::string_view text) {
    if (take_operator(text)) return {};
    return fail(fmt::format("'{}' expected, found {}", text, found()));
  }
  Status expect_name(std::string_view text) {
    if (take_name(text)) return {};
    return fail(fmt::format("'{}' expected, found {}", text, found()));
  }
  Result<std::string> expect_any_name() {
    if (at(Token::Kind::kName)) return std::move(take().text);
    return fail(fmt::format("a name expected, found {}", found()));
  }
  Status expect_end(Token::Kind kind) {
    if (take_if(at(kind))) return {};
    return fail(fmt::format("the end of the tag expected, found {}", found()));
  }

  Error fail(std::string_view message) const { return fail_at(offset(), message); }
  Error fail_at(uint32_t offset, std::string_view message) const {
    return error_at(source_, offset, ErrorCode::kInvalidArgument, message);
  }
  std::string found() const {
    switch (current().kind) {
      case Token::Kind::kText:
        return "text";
      case Token::Kind::kPrintBegin:
        return "'{{'";
      case Token::Kind::kPrintEnd:
        return "'}}'";
      case Token::Kind::kBlockBegin:
        return "'{%'";
      case Token::Kind::kBlockEnd:
        return "'%}'";
      case Token::Kind::kString:
        return "a string";
      case Token::Kind::kEnd:
        return "the end of the template";
      default:
        return fmt::format("'{}'", current().text);
    }
  }

  // One level deeper until the end of the scope; each turn of a loop that wraps what it has parsed
  // so far is a level too.
  class Nesting {
   public:
    explicit Nesting(TokenStream& stream) : stream_(stream), outside_(stream.depth_) {}
    ~Nesting() { stream_.depth_ = outside_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

    Status deeper(int limit) {
      if (++stream_.depth_ <= limit) return {};
      return stream_.fail(fmt::format("nested more than {} levels deep", limit));
    }

   private:
    TokenStream& stream_;
    int outside_;
  };

 private:
  bool take_if(bool here) {
    if (here) take();
    return here;
  }

  std::string_view source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace quarot::jinja
