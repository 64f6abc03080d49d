#include "text/jinja_parser.h"

#include <initializer_list>
#include <utility>

#include "text/jinja_expression_parser.h"

namespace quarot::jinja {

namespace {

using Kind = Token::Kind;
using Node = decltype(Statement::node);

class Parser {
 public:
  Parser(std::string_view source, std::vector<Token> tokens)
      : tokens_(source, std::move(tokens)), expressions_(tokens_) {}

  Result<Block> run() { return block({}, 0); }

 private:
  // Statements up to a tag that opens with one of `ends`, of which the word is left at hand; with
  // no ends, up to the end of the template. `opened` is where the block began.
  Result<Block> block(std::initializer_list<std::string_view> ends, uint32_t opened) {
    TokenStream::Nesting nesting(tokens_);
    QUAROT_RETURN_IF_ERROR(nesting.deeper(kMaxNesting));
    Block block;
    while (!tokens_.at(Kind::kEnd)) {
      Statement statement;
      statement.offset = tokens_.offset();
      if (tokens_.at(Kind::kText)) {
        statement.node = TextNode{std::move(tokens_.take().text)};
      } else if (tokens_.at(Kind::kPrintBegin)) {
        tokens_.take();
        QUAROT_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.tuple(true));
        QUAROT_RETURN_IF_ERROR(tokens_.expect_end(Kind::kPrintEnd));
        statement.node = PrintNode{std::move(value)};
      } else {
        tokens_.take();
        for (const std::string_view end : ends) {
          if (tokens_.at_name(end)) return block;
        }
        QUAROT_ASSIGN_OR_RETURN(statement.node, tag());
        QUAROT_RETURN_IF_ERROR(tokens_.expect_end(Kind::kBlockEnd));
      }
      block.push_back(std::move(statement));
    }
    if (ends.size() == 0) return block;
    return tokens_.fail_at(
        opened, fmt::format("'{{% {} %}}' expected, found the end of the template", *ends.begin()));
  }

  // The rest of a tag, then statements up to a tag with one of `ends`.
  Result<Block> body(std::initializer_list<std::string_view> ends) {
    const uint32_t opened = tokens_.offset();
    tokens_.take_operator(":");
    QUAROT_RETURN_IF_ERROR(tokens_.expect_end(Kind::kBlockEnd));
    return block(ends, opened);
  }

  // The same up to `end`, whose word is taken.
  Result<Block> whole_body(std::string_view end) {
    QUAROT_ASSIGN_OR_RETURN(Block inside, body({end}));
    tokens_.take();
    return inside;
  }

  Result<Node> tag() {
    static constexpr std::pair<std::string_view, Result<Node> (Parser::*)()> kTags[] = {
        {"if", &Parser::if_tag},      {"for", &Parser::for_tag},
        {"set", &Parser::set_tag},    {"macro", &Parser::macro_tag},
        {"call", &Parser::call_tag},  {"filter", &Parser::filter_tag},
        {"with", &Parser::with_tag},  {"generation", &Parser::generation_tag},
        {"break", &Parser::jump_tag}, {"continue", &Parser::jump_tag}};
    for (const auto& [word, parse] : kTags) {
      if (tokens_.at_name(word)) return (this->*parse)();
    }
    return tokens_.fail(fmt::format("no such tag here: {}", tokens_.found()));
  }

  Result<Node> if_tag() {
    IfNode node;
    do {
      tokens_.take();
      QUAROT_ASSIGN_OR_RETURN(ExpressionPtr condition, expressions_.tuple(false));
      QUAROT_ASSIGN_OR_RETURN(Block then, body({"endif", "elif", "else"}));
      node.branches.emplace_back(std::move(condition), std::move(then));
    } while (tokens_.at_name("elif"));
    if (tokens_.take().text == "else") {
      QUAROT_ASSIGN_OR_RETURN(node.otherwise, whole_body("endif"));
    }
    return Node(std::move(node));
  }

  Result<Node> for_tag() {
    tokens_.take();
    ForNode node;
    QUAROT_ASSIGN_OR_RETURN(node.target, target(false));
    QUAROT_RETURN_IF_ERROR(tokens_.expect_name("in"));
    QUAROT_ASSIGN_OR_RETURN(node.items, expressions_.tuple(false));
    if (tokens_.take_name("if")) {
      QUAROT_ASSIGN_OR_RETURN(node.condition, expressions_.expression());
    }
    if (tokens_.at_name("recursive")) return tokens_.fail("recursive loops are not supported");
    ++loops_;
    QUAROT_ASSIGN_OR_RETURN(node.body, body({"endfor", "else"}));
    --loops_;
    if (tokens_.take().text == "else") {
      QUAROT_ASSIGN_OR_RETURN(node.otherwise, whole_body("endfor"));
    }
    return Node(std::move(node));
  }

  Result<Node> set_tag() {
    tokens_.take();
    QUAROT_ASSIGN_OR_RETURN(Target into, target(true));
    if (tokens_.take_operator("=")) {
      QUAROT_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.tuple(true));
      return Node(SetNode{std::move(into), std::move(value)});
    }
    QUAROT_ASSIGN_OR_RETURN(ExpressionPtr filter, expressions_.filters(nullptr));
    QUAROT_ASSIGN_OR_RETURN(Block inside, whole_body("endset"));
    return Node(SetBlockNode{std::move(into), std::move(filter), std::move(inside)});
  }

  Result<Node> with_tag() {
    tokens_.take();
    WithNode node;
    while (!tokens_.at(Kind::kBlockEnd)) {
      if (!node.assignments.empty()) QUAROT_RETURN_IF_ERROR(tokens_.expect_operator(","));
      QUAROT_ASSIGN_OR_RETURN(Target into, single_target(false));
      QUAROT_RETURN_IF_ERROR(tokens_.expect_operator("="));
      QUAROT_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.expression());
      node.assignments.emplace_back(std::move(into), std::move(value));
    }
    QUAROT_ASSIGN_OR_RETURN(node.body, whole_body("endwith"));
    return Node(std::move(node));
  }

  Result<Node> macro_tag() {
    tokens_.take();
    MacroNode node;
    QUAROT_ASSIGN_OR_RETURN(node.name, tokens_.expect_any_name());
    QUAROT_RETURN_IF_ERROR(signature(node));
    QUAROT_RETURN_IF_ERROR(macro_body(node, "endmacro"));
    return Node(std::move(node));
  }

  Result<Node> call_tag() {
    tokens_.take();
    CallBlockNode node;
    node.caller.name = "caller";
    if (tokens_.at_operator("(")) QUAROT_RETURN_IF_ERROR(signature(node.caller));
    const uint32_t offset = tokens_.offset();
    QUAROT_ASSIGN_OR_RETURN(node.call, expressions_.expression());
    if (!std::holds_alternative<CallNode>(node.call->node)) {
      return tokens_.fail_at(offset, "a call expected");
    }
    QUAROT_RETURN_IF_ERROR(macro_body(node.caller, "endcall"));
    return Node(std::move(node));
  }

  // break and continue do not reach out of a macro.
  Status macro_body(MacroNode& node, std::string_view end) {
    const int outside = std::exchange(loops_, 0);
    QUAROT_ASSIGN_OR_RETURN(node.body, whole_body(end));
    loops_ = outside;
    return {};
  }

  Status signature(MacroNode& node) {
    QUAROT_RETURN_IF_ERROR(tokens_.expect_operator("("));
    bool defaults = false;
    while (!tokens_.at_operator(")")) {
      if (!node.parameters.empty()) QUAROT_RETURN_IF_ERROR(tokens_.expect_operator(","));
      QUAROT_ASSIGN_OR_RETURN(std::string name, tokens_.expect_any_name());
      ExpressionPtr value;
      if (tokens_.take_operator("=")) {
        QUAROT_ASSIGN_OR_RETURN(value, expressions_.expression());
        defaults = true;
      } else if (defaults) {
        return tokens_.fail("a parameter without a default stands after one that has one");
      }
      node.parameters.emplace_back(std::move(name), std::move(value));
    }
    tokens_.take();
    return {};
  }

  Result<Node> filter_tag() {
    tokens_.take();
    FilterBlockNode node;
    QUAROT_ASSIGN_OR_RETURN(node.filter, expressions_.filter(nullptr));
    QUAROT_ASSIGN_OR_RETURN(node.filter, expressions_.filters(std::move(node.filter)));
    QUAROT_ASSIGN_OR_RETURN(node.body, whole_body("endfilter"));
    return Node(std::move(node));
  }

  Result<Node> generation_tag() {
    tokens_.take();
    const int outside = std::exchange(loops_, 0);
    QUAROT_ASSIGN_OR_RETURN(Block inside, whole_body("endgeneration"));
    loops_ = outside;
    return Node(GenerationNode{std::move(inside)});
  }

  Result<Node> jump_tag() {
    if (loops_ == 0) return tokens_.fail(fmt::format("{} outside of a loop", tokens_.found()));
    return Node(tokens_.take().text == "break" ? Jump::kBreak : Jump::kContinue);
  }

  Result<Target> target(bool attributes) {
    const uint32_t offset = tokens_.offset();
    QUAROT_ASSIGN_OR_RETURN(Target first, single_target(attributes));
    if (!tokens_.at_operator(",")) return first;
    Target all;
    all.offset = offset;
    all.items.push_back(std::move(first));
    while (tokens_.take_operator(",")) {
      if (!tokens_.at(Kind::kName) && !tokens_.at_operator("(")) break;
      if (tokens_.at_name("in")) break;
      QUAROT_ASSIGN_OR_RETURN(Target next, single_target(attributes));
      all.items.push_back(std::move(next));
    }
    return all;
  }

  Result<Target> single_target(bool attributes) {
    TokenStream::Nesting nesting(tokens_);
    QUAROT_RETURN_IF_ERROR(nesting.deeper(kMaxNesting));
    if (tokens_.take_operator("(")) {
      QUAROT_ASSIGN_OR_RETURN(Target inside, target(attributes));
      QUAROT_RETURN_IF_ERROR(tokens_.expect_operator(")"));
      return inside;
    }
    Target one;
    one.offset = tokens_.offset();
    QUAROT_ASSIGN_OR_RETURN(one.name, tokens_.expect_any_name());
    if (attributes && tokens_.take_operator(".")) {
      QUAROT_ASSIGN_OR_RETURN(one.attribute, tokens_.expect_any_name());
    }
    for (const std::string_view word : {"true", "false", "none", "True", "False", "None"}) {
      if (one.name == word) {
        return tokens_.fail_at(one.offset, fmt::format("cannot assign to '{}'", word));
      }
    }
    return one;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

Result<Block> parse(std::string_view normalized) {
  if (normalized.size() > kMaxSourceBytes) {
    return error(ErrorCode::kUnsupported, "the template has {} bytes, more than {}",
                 normalized.size(), kMaxSourceBytes);
  }
  QUAROT_ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(normalized));
  return Parser(normalized, std::move(tokens)).run();
}

}  // namespace quarot::jinja
