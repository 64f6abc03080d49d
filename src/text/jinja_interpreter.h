// Runs a syntax tree: prints text, binds names, calls what can be called.
#pragma once

#include <string>
#include <string_view>

#include "quarot/status.h"
#include "text/jinja_ast.h"
#include "text/jinja_callable.h"
#include "text/jinja_value.h"

namespace quarot::jinja {

constexpr size_t kMaxOutputBytes = size_t{16} << 20;
constexpr int kMaxCallDepth = 300;  // expressions and statements being evaluated inside each other

class Interpreter {
 public:
  // `source` names positions in errors; `globals` are the variables the template is given.
  Interpreter(std::string_view source, Arena& arena, Scope* globals)
      : source_(source),
        arena_(arena),
        globals_(globals),
        scope_(arena.make<Scope>({globals, {}})) {}

  Result<std::string> render(const Block& block);

  Arena& arena() { return arena_; }
  // A variable the template was given, else undefined.
  Value variable(std::string_view name) const;
  // By name, as map('upper') or select('defined') need them.
  Result<Value> apply_filter(std::string_view name, const Value& input, const Arguments& arguments);
  Result<bool> apply_test(std::string_view name, const Value& input, const Arguments& arguments);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Inside;

  Error fail(uint32_t offset, const Error& error) const;
  Status check(uint32_t offset) const;
  template <typename T>
  Result<T> at(uint32_t offset, Result<T> result) const {
    if (!result.ok()) return fail(offset, result.error());
    return result;
  }

  Result<Value> evaluate(const Expression& expression);
  Result<Value> evaluate_or_none(const ExpressionPtr& expression);
  Result<Arguments> evaluate(const ArgumentNodes& nodes, uint32_t offset);
  Result<Value> run(const LiteralNode& node, uint32_t offset);
  Result<Value> run(const NameNode& node, uint32_t offset);
  Result<Value> run(const ListNode& node, uint32_t offset);
  Result<Value> run(const DictNode& node, uint32_t offset);
  Result<Value> run(const AttributeNode& node, uint32_t offset);
  Result<Value> run(const ItemNode& node, uint32_t offset);
  Result<Value> run(const SliceNode& node, uint32_t offset);
  Result<Value> run(const CallNode& node, uint32_t offset);
  Result<Value> run(const FilterNode& node, uint32_t offset);
  Result<Value> run(const TestNode& node, uint32_t offset);
  Result<Value> run(const UnaryNode& node, uint32_t offset);
  Result<Value> run(const BinaryNode& node, uint32_t offset);
  Result<Value> run(const LogicNode& node, uint32_t offset);
  Result<Value> run(const CompareNode& node, uint32_t offset);
  Result<Value> run(const ConditionalNode& node, uint32_t offset);

  Result<Flow> execute(const Block& block);
  Result<Flow> execute_inside(const Block& block);  // in a scope of its own
  Result<Flow> execute(const TextNode& node, uint32_t offset);
  Result<Flow> execute(const PrintNode& node, uint32_t offset);
  Result<Flow> execute(const IfNode& node, uint32_t offset);
  Result<Flow> execute(const ForNode& node, uint32_t offset);
  Result<Flow> execute(const SetNode& node, uint32_t offset);
  Result<Flow> execute(const SetBlockNode& node, uint32_t offset);
  Result<Flow> execute(const WithNode& node, uint32_t offset);
  Result<Flow> execute(const MacroNode& node, uint32_t offset);
  Result<Flow> execute(const CallBlockNode& node, uint32_t offset);
  Result<Flow> execute(const FilterBlockNode& node, uint32_t offset);
  Result<Flow> execute(const GenerationNode& node, uint32_t offset);
  Result<Flow> execute(Jump node, uint32_t offset);

  Result<std::vector<Value>> loop_items(const ForNode& node);
  // What the block prints.
  Result<Value> capture(const Block& block);
  Result<Value> filter_text(const Expression& filter, const Value& text);
  Result<Value> call(const CallNode& node, uint32_t offset, const MacroNode* caller);
  Result<Value> call_macro(const Callable& macro, Arguments arguments, uint32_t offset);
  Status bind_parameters(const MacroNode& macro, Arguments& arguments, uint32_t offset);
  void spend_on(const Value& input);
  Status print(const Value& value, uint32_t offset);

  Value look_up(std::string_view name) const;
  void define(std::string_view name, const Value& value);
  Status assign(const Target& target, const Value& value);
  Status assign_items(const Target& target, const Value& value);
  Status assign_attribute(const Target& target, const Value& value);

  std::string_view source_;
  Arena& arena_;
  Scope* globals_;
  Scope* scope_;
  std::string output_;
  int depth_ = 0;
  Value filtered_;  // the text that a filter without an input works on
};

}  // namespace quarot::jinja
