// Expressions: Jinja2's precedences, from `a if b else c` down to calls and filters.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_token_stream.h"

namespace quarot::jinja {

template <typename Node>
ExpressionPtr make_expression(uint32_t offset, Node node) {
  auto expression = std::make_unique<Expression>();
  expression->offset = offset;
  expression->node = std::move(node);
  return expression;
}

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  Result<ExpressionPtr> expression() { return conditional(); }
  // One expression, or several with commas between: a tuple. `condition` says whether `if` belongs
  // to the expression.
  Result<ExpressionPtr> tuple(bool condition);
  Result<ExpressionPtr> disjunction();
  // "| name(arguments) | …" applied to `input`, which may be null.
  Result<ExpressionPtr> filters(ExpressionPtr input);
  // "name(arguments)" of a filter whose bar is already taken.
  Result<ExpressionPtr> filter(ExpressionPtr input);

 private:
  using Level = Result<ExpressionPtr> (ExpressionParser::*)();
  struct Symbol {
    std::string_view text;
    BinaryOperator op;
  };

  Result<ExpressionPtr> conditional();
  Result<ExpressionPtr> conjunction();
  Result<ExpressionPtr> negation();
  Result<ExpressionPtr> comparison();
  Result<ExpressionPtr> sum();
  Result<ExpressionPtr> join();
  Result<ExpressionPtr> product();
  Result<ExpressionPtr> power();
  Result<ExpressionPtr> unary() { return unary_with(true); }
  Result<ExpressionPtr> unary_with(bool filtered);
  Result<ExpressionPtr> logic(std::string_view word, bool conjunction, Level operand);
  Result<ExpressionPtr> binary(const std::vector<Symbol>& symbols, Level operand);
  bool take_comparison(Comparison& op);

  Result<ExpressionPtr> primary();
  Result<ExpressionPtr> name();
  Result<ExpressionPtr> list();
  Result<ExpressionPtr> dict();
  Result<ExpressionPtr> postfix(ExpressionPtr expression);
  Result<ExpressionPtr> filters_tests_calls(ExpressionPtr expression);
  Result<ExpressionPtr> attribute(ExpressionPtr object);
  Result<ExpressionPtr> subscript(ExpressionPtr object);
  Result<ExpressionPtr> slice_part();
  Result<ExpressionPtr> call(ExpressionPtr callee);
  Result<ExpressionPtr> test(ExpressionPtr input);
  Result<ArgumentNodes> arguments();
  Status argument(ArgumentNodes& into);
  bool starts_test_argument() const;

  TokenStream& tokens_;
};

}  // namespace quarot::jinja
