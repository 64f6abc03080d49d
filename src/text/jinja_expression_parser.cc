#include "text/jinja_expression_parser.h"

#include <utility>

#include "text/jinja_parser.h"

namespace quarot::jinja {

using Kind = Token::Kind;

Result<ExpressionPtr> ExpressionParser::tuple(bool condition) {
  const uint32_t offset = tokens_.offset();
  ListNode items;
  items.tuple = true;
  while (true) {
    QUAROT_ASSIGN_OR_RETURN(ExpressionPtr item, condition ? conditional() : disjunction());
    if (items.items.empty() && !tokens_.at_operator(",")) return item;
    items.items.push_back(std::move(item));
    if (!tokens_.take_operator(",")) break;
    if (tokens_.at(Kind::kPrintEnd) || tokens_.at(Kind::kBlockEnd) || tokens_.at_operator(")")) {
      break;
    }
  }
  return make_expression(offset, std::move(items));
}

Result<ExpressionPtr> ExpressionParser::conditional() {
  TokenStream::Nesting nesting(tokens_);
  QUAROT_RETURN_IF_ERROR(nesting.deeper(kMaxNesting));
  QUAROT_ASSIGN_OR_RETURN(ExpressionPtr then, disjunction());
  while (tokens_.at_name("if")) {
    QUAROT_RETURN_IF_ERROR(nesting.deeper(kMaxNesting));
    const uint32_t offset = tokens_.take().offset;
    ConditionalNode node;
    node.then = std::move(then);
    QUAROT_ASSIGN_OR_RETURN(node.condition, disjunction());
    if (tokens_.take_name("else")) {
      QUAROT_ASSIGN_OR_RETURN(node.otherwise, conditional());
    }
    then = make_expression(offset, std::move(node));
  }
  return then;
}

Result<ExpressionPtr> ExpressionParser::logic(std::string_view word, bool conjunction,
                                              Level operand) {
  TokenStream::Nesting nesting(tokens_);
  QUAROT_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*operand)());
  while (tokens_.at_name(word)) {
    QUAROT_RETURN_IF_ERROR(nesting.deeper(kMaxNesting));
    const uint32_t offset = tokens_.take().offset;
    QUAROT_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*operand)());
    left = make_expression(offset, LogicNode{conjunction, std::move(left), std::move(right)});
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::disjunction() {
  return logic("or", false, &ExpressionParser::conjunction);
}

Result<ExpressionPtr> ExpressionParser::conjunction() {
  return logic("and", true, &ExpressionParser::negation);
}

Result<ExpressionPtr> ExpressionParser::negation() {
  if (!tokens_.at_name("not")) return comparison();
  TokenStream::Nesting nesting(tokens_);
  QUAROT_RETURN_IF_ERROR(nesting.deeper(kMaxNesting));
  const uint32_t offset = tokens_.take().offset;
  QUAROT_ASSIGN_OR_RETURN(ExpressionPtr operand, negation());
  return make_expression(offset, UnaryNode{UnaryOperator::kNot, std::move(operand)});
}

bool ExpressionParser::take_comparison(Comparison& op) {
  static constexpr std::pair<std::string_view, Comparison> kSymbols[] = {
      {"==", Comparison::kEqual}, {"!=", Comparison::kNotEqual}, {"<=", Comparison::kLessEqual},
      {"<", Comparison::kLess},   {">", Comparison::kGreater},   {">=", Comparison::kGreaterEqual}};
  for (const auto& [symbol, comparison] : kSymbols) {
    op = comparison;
    if (tokens_.take_operator(symbol)) return true;
  }
  const bool negated =
      tokens_.at_name("not") && tokens_.ahead().kind == Kind::kName && tokens_.ahead().text == "in";
  if (negated) tokens_.take();
  op = negated ? Comparison::kNotIn : Comparison::kIn;
  return tokens_.take_name("in");
}

Result<ExpressionPtr> ExpressionParser::comparison() {
  const uint32_t offset = tokens_.offset();
  QUAROT_ASSIGN_OR_RETURN(ExpressionPtr first, sum());
  CompareNode node;
  for (Comparison op{}; take_comparison(op);) {
    QUAROT_ASSIGN_OR_RETURN(ExpressionPtr next, sum());
    node.rest.emplace_back(op, std::move(next));
  }
  if (node.rest.empty()) return first;
  node.first = std::move(first);
  return make_expression(offset, std::move(node));
}

Result<ExpressionPtr> ExpressionParser::binary(const std::vector<Symbol>& symbols, Level operand) {
  TokenStream::Nesting nesting(tokens_);
  QUAROT_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*operand)());
  while (true) {
    const Symbol* found = nullptr;
    for (const Symbol& symbol : symbols) {
      if (tokens_.at_operator(symbol.text)) found = &symbol;
    }
    if (found == nullptr) return left;
    QUAROT_RETURN_IF_ERROR(nesting.deeper(kMaxNesting));
    const uint32_t offset = tokens_.take().offset;
    QUAROT_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*operand)());
    left = make_expression(offset, BinaryNode{found->op, std::move(left), std::move(right)});
  }
}

Result<ExpressionPtr> ExpressionParser::sum() {
  static const std::vector<Symbol> kSymbols = {{"+", BinaryOperator::kAdd},
                                               {"-", BinaryOperator::kSubtract}};
  return binary(kSymbols, &ExpressionParser::join);
}

Result<ExpressionPtr> ExpressionParser::join() {
  static const std::vector<Symbol> kSymbols = {{"~", BinaryOperator::kJoin}};
  return binary(kSymbols, &ExpressionParser::product);
}

Result<ExpressionPtr> ExpressionParser::product() {
  static const std::vector<Symbol> kSymbols = {{"*", BinaryOperator::kMultiply},
                                               {"/", BinaryOperator::kDivide},
                                               {"//", BinaryOperator::kFloorDivide},
                                               {"%", BinaryOperator::kModulo}};
  return binary(kSymbols, &ExpressionParser::power);
}

Result<ExpressionPtr> ExpressionParser::power() {
  static const std::vector<Symbol> kSymbols = {{"**", BinaryOperator::kPower}};
  return binary(kSymbols, &ExpressionParser::unary);
}

// Jinja binds -x|filter as (-x)|filter.
Result<ExpressionPtr> ExpressionParser::unary_with(bool filtered) {
  TokenStream::Nesting nesting(tokens_);
  ExpressionPtr expression;
  const bool minus = tokens_.at_operator("-");
  if (minus || tokens_.at_operator("+")) {
    QUAROT_RETURN_IF_ERROR(nesting.deeper(kMaxNesting));
    const uint32_t offset = tokens_.take().offset;
    QUAROT_ASSIGN_OR_RETURN(ExpressionPtr operand, unary_with(false));
    const UnaryOperator op = minus ? UnaryOperator::kMinus : UnaryOperator::kPlus;
    expression = make_expression(offset, UnaryNode{op, std::move(operand)});
  } else {
    QUAROT_ASSIGN_OR_RETURN(expression, primary());
  }
  QUAROT_ASSIGN_OR_RETURN(expression, postfix(std::move(expression)));
  if (!filtered) return expression;
  return filters_tests_calls(std::move(expression));
}

Result<ExpressionPtr> ExpressionParser::name() {
  Token& token = tokens_.take();
  const std::string& text = token.text;
  if (text == "true" || text == "True") return make_expression(token.offset, LiteralNode(true));
  if (text == "false" || text == "False") return make_expression(token.offset, LiteralNode(false));
  if (text == "none" || text == "None") return make_expression(token.offset, LiteralNode());
  return make_expression(token.offset, NameNode{std::move(token.text)});
}

Result<ExpressionPtr> ExpressionParser::primary() {
  const uint32_t offset = tokens_.offset();
  switch (tokens_.current().kind) {
    case Kind::kName:
      return name();
    case Kind::kInteger:
      return make_expression(offset, LiteralNode(tokens_.take().integer));
    case Kind::kFloat:
      return make_expression(offset, LiteralNode(tokens_.take().real));
    case Kind::kString: {
      std::string text;
      while (tokens_.at(Kind::kString)) text += tokens_.take().text;
      return make_expression(offset, LiteralNode(std::move(text)));
    }
    default:
      break;
  }
  if (tokens_.at_operator("[")) return list();
  if (tokens_.at_operator("{")) return dict();
  if (!tokens_.take_operator("(")) {
    return tokens_.fail(fmt::format("an expression expected, found {}", tokens_.found()));
  }
  if (tokens_.take_operator(")")) return make_expression(offset, ListNode{true, {}});
  QUAROT_ASSIGN_OR_RETURN(ExpressionPtr inside, tuple(true));
  QUAROT_RETURN_IF_ERROR(tokens_.expect_operator(")"));
  return inside;
}

Result<ExpressionPtr> ExpressionParser::list() {
  const uint32_t offset = tokens_.take().offset;
  ListNode node;
  while (!tokens_.at_operator("]")) {
    QUAROT_ASSIGN_OR_RETURN(ExpressionPtr item, expression());
    node.items.push_back(std::move(item));
    if (!tokens_.take_operator(",")) break;
  }
  QUAROT_RETURN_IF_ERROR(tokens_.expect_operator("]"));
  return make_expression(offset, std::move(node));
}

Result<ExpressionPtr> ExpressionParser::dict() {
  const uint32_t offset = tokens_.take().offset;
  DictNode node;
  while (!tokens_.at_operator("}")) {
    QUAROT_ASSIGN_OR_RETURN(ExpressionPtr key, expression());
    QUAROT_RETURN_IF_ERROR(tokens_.expect_operator(":"));
    QUAROT_ASSIGN_OR_RETURN(ExpressionPtr value, expression());
    node.items.emplace_back(std::move(key), std::move(value));
    if (!tokens_.take_operator(",")) break;
  }
  QUAROT_RETURN_IF_ERROR(tokens_.expect_operator("}"));
  return make_expression(offset, std::move(node));
}

Result<ExpressionPtr> ExpressionParser::postfix(ExpressionPtr expression) {
  TokenStream::Nesting nesting(tokens_);
  while (true) {
    const bool dot = tokens_.at_operator(".");
    const bool bracket = tokens_.at_operator("[");
    if (!dot && !bracket && !tokens_.at_operator("(")) return expression;
    QUAROT_RETURN_IF_ERROR(nesting.deeper(kMaxNesting));
    QUAROT_ASSIGN_OR_RETURN(expression, dot       ? attribute(std::move(expression))
                                        : bracket ? subscript(std::move(expression))
                                                  : call(std::move(expression)));
  }
}

Result<ExpressionPtr> ExpressionParser::filters_tests_calls(ExpressionPtr expression) {
  TokenStream::Nesting nesting(tokens_);
  while (true) {
    const bool bar = tokens_.at_operator("|");
    const bool is = tokens_.at_name("is");
    if (!bar && !is && !tokens_.at_operator("(")) return expression;
    QUAROT_RETURN_IF_ERROR(nesting.deeper(kMaxNesting));
    if (bar) tokens_.take();
    QUAROT_ASSIGN_OR_RETURN(expression, bar  ? filter(std::move(expression))
                                        : is ? test(std::move(expression))
                                             : call(std::move(expression)));
  }
}

Result<ExpressionPtr> ExpressionParser::filters(ExpressionPtr input) {
  TokenStream::Nesting nesting(tokens_);
  while (tokens_.take_operator("|")) {
    QUAROT_RETURN_IF_ERROR(nesting.deeper(kMaxNesting));
    QUAROT_ASSIGN_OR_RETURN(input, filter(std::move(input)));
  }
  return input;
}

Result<ExpressionPtr> ExpressionParser::filter(ExpressionPtr input) {
  const uint32_t offset = tokens_.offset();
  FilterNode node;
  node.input = std::move(input);
  QUAROT_ASSIGN_OR_RETURN(node.name, tokens_.expect_any_name());
  if (tokens_.at_operator("(")) {
    QUAROT_ASSIGN_OR_RETURN(node.arguments, arguments());
  }
  return make_expression(offset, std::move(node));
}

Result<ExpressionPtr> ExpressionParser::attribute(ExpressionPtr object) {
  const uint32_t offset = tokens_.take().offset;
  if (tokens_.at(Kind::kInteger)) {
    ExpressionPtr index = make_expression(tokens_.offset(), LiteralNode(tokens_.current().integer));
    tokens_.take();
    return make_expression(offset, ItemNode{std::move(object), std::move(index)});
  }
  QUAROT_ASSIGN_OR_RETURN(std::string name, tokens_.expect_any_name());
  return make_expression(offset, AttributeNode{std::move(object), std::move(name)});
}

// A part of a slice, null where it is left out.
Result<ExpressionPtr> ExpressionParser::slice_part() {
  if (tokens_.at_operator(":") || tokens_.at_operator("]")) return ExpressionPtr();
  return expression();
}

Result<ExpressionPtr> ExpressionParser::subscript(ExpressionPtr object) {
  const uint32_t offset = tokens_.take().offset;
  if (tokens_.at_operator("]")) return tokens_.fail("an index expected, found ']'");
  QUAROT_ASSIGN_OR_RETURN(ExpressionPtr first, slice_part());
  if (tokens_.take_operator("]")) {
    return make_expression(offset, ItemNode{std::move(object), std::move(first)});
  }
  SliceNode slice;
  slice.object = std::move(object);
  slice.start = std::move(first);
  QUAROT_RETURN_IF_ERROR(tokens_.expect_operator(":"));
  QUAROT_ASSIGN_OR_RETURN(slice.stop, slice_part());
  if (tokens_.take_operator(":")) {
    QUAROT_ASSIGN_OR_RETURN(slice.step, slice_part());
  }
  QUAROT_RETURN_IF_ERROR(tokens_.expect_operator("]"));
  return make_expression(offset, std::move(slice));
}

Result<ExpressionPtr> ExpressionParser::call(ExpressionPtr callee) {
  const uint32_t offset = tokens_.offset();
  QUAROT_ASSIGN_OR_RETURN(ArgumentNodes given, arguments());
  return make_expression(offset, CallNode{std::move(callee), std::move(given)});
}

// A test takes one argument without parentheses: x is divisibleby 3.
bool ExpressionParser::starts_test_argument() const {
  switch (tokens_.current().kind) {
    case Kind::kString:
    case Kind::kInteger:
    case Kind::kFloat:
      return true;
    case Kind::kOperator:
      return tokens_.at_operator("[") || tokens_.at_operator("{");
    case Kind::kName:
      return !tokens_.at_name("else") && !tokens_.at_name("or") && !tokens_.at_name("and");
    default:
      return false;
  }
}

Result<ExpressionPtr> ExpressionParser::test(ExpressionPtr input) {
  const uint32_t offset = tokens_.take().offset;
  const bool negated = tokens_.take_name("not");
  TestNode node;
  node.input = std::move(input);
  QUAROT_ASSIGN_OR_RETURN(node.name, tokens_.expect_any_name());
  if (tokens_.at_operator("(")) {
    QUAROT_ASSIGN_OR_RETURN(node.arguments, arguments());
  } else if (tokens_.at_name("is")) {
    return tokens_.fail("tests cannot be chained with 'is'");
  } else if (starts_test_argument()) {
    QUAROT_ASSIGN_OR_RETURN(ExpressionPtr argument, primary());
    QUAROT_ASSIGN_OR_RETURN(argument, postfix(std::move(argument)));
    node.arguments.positional.push_back(std::move(argument));
  }
  ExpressionPtr expression = make_expression(offset, std::move(node));
  if (!negated) return expression;
  return make_expression(offset, UnaryNode{UnaryOperator::kNot, std::move(expression)});
}

Result<ArgumentNodes> ExpressionParser::arguments() {
  tokens_.take();
  ArgumentNodes all;
  while (!tokens_.at_operator(")")) {
    QUAROT_RETURN_IF_ERROR(argument(all));
    if (!tokens_.take_operator(",")) break;
  }
  QUAROT_RETURN_IF_ERROR(tokens_.expect_operator(")"));
  return all;
}

Status ExpressionParser::argument(ArgumentNodes& into) {
  const bool star = tokens_.at_operator("*");
  if (star || tokens_.at_operator("**")) {
    ExpressionPtr& more = star ? into.more_positional : into.more_named;
    if (more || into.more_named) return tokens_.fail("these arguments stand twice or out of order");
    tokens_.take();
    QUAROT_ASSIGN_OR_RETURN(more, expression());
    return {};
  }
  const bool named = tokens_.at(Kind::kName) && tokens_.ahead().kind == Kind::kOperator &&
                     tokens_.ahead().text == "=";
  if (into.more_named || (!named && (into.more_positional || !into.named.empty()))) {
    return tokens_.fail("an argument by position stands after one by name");
  }
  std::string name;
  if (named) {
    name = std::move(tokens_.take().text);
    tokens_.take();
  }
  QUAROT_ASSIGN_OR_RETURN(ExpressionPtr value, expression());
  if (named) {
    into.named.emplace_back(std::move(name), std::move(value));
  } else {
    into.positional.push_back(std::move(value));
  }
  return {};
}

}  // namespace quarot::jinja
