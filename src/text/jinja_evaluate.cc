// Expressions.
#include <utility>

#include "base/error.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"

namespace quarot::jinja {

Result<Value> Interpreter::evaluate(const Expression& expression) {
  ++depth_;
  arena_.spend(Arena::kNodeCost);
  QUAROT_RETURN_IF_ERROR(check(expression.offset));
  Result<Value> result =
      std::visit([&](const auto& node) { return run(node, expression.offset); }, expression.node);
  --depth_;
  return result;
}

Result<Value> Interpreter::evaluate_or_none(const ExpressionPtr& expression) {
  if (!expression) return Value(None{});
  return evaluate(*expression);
}

Result<Arguments> Interpreter::evaluate(const ArgumentNodes& nodes, uint32_t offset) {
  Arguments all;
  for (const ExpressionPtr& node : nodes.positional) {
    QUAROT_ASSIGN_OR_RETURN(const Value value, evaluate(*node));
    all.positional.push_back(value);
  }
  for (const auto& [name, node] : nodes.named) {
    QUAROT_ASSIGN_OR_RETURN(const Value value, evaluate(*node));
    all.named.emplace_back(name, value);
  }
  if (nodes.more_positional) {
    QUAROT_ASSIGN_OR_RETURN(const Value more, evaluate(*nodes.more_positional));
    QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items, at(offset, iterate(arena_, more)));
    arena_.spend(items.size() * sizeof(Value));
    all.positional.insert(all.positional.end(), items.begin(), items.end());
  }
  if (nodes.more_named) {
    QUAROT_ASSIGN_OR_RETURN(const Value more, evaluate(*nodes.more_named));
    const auto* dict = get<const Dict*>(more);
    if (dict == nullptr) {
      return fail(offset,
                  error(ErrorCode::kInvalidArgument, "** needs a dict, got {}", type_name(more)));
    }
    for (const auto& [key, value] : (*dict)->items) {
      all.named.emplace_back(str(arena_, key), value);
    }
  }
  return all;
}

Result<Value> Interpreter::run(const LiteralNode& node, uint32_t) {
  struct Maker {
    Value operator()(NoneNode) const { return None{}; }
    Value operator()(const std::string& text) const { return std::string_view(text); }
    Value operator()(bool value) const { return value; }
    Value operator()(int64_t value) const { return value; }
    Value operator()(double value) const { return value; }
  };
  return std::visit(Maker{}, node);
}

Result<Value> Interpreter::run(const NameNode& node, uint32_t) { return look_up(node.name); }

Result<Value> Interpreter::run(const ListNode& node, uint32_t) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const ExpressionPtr& expression : node.items) {
    QUAROT_ASSIGN_OR_RETURN(const Value value, evaluate(*expression));
    items.push_back(value);
  }
  const auto kind = node.tuple ? Sequence::Kind::kTuple : Sequence::Kind::kList;
  return arena_.sequence(kind, std::move(items));
}

Result<Value> Interpreter::run(const DictNode& node, uint32_t) {
  Dict* dict = arena_.make<Dict>();
  for (const auto& [key_node, value_node] : node.items) {
    QUAROT_ASSIGN_OR_RETURN(const Value key, evaluate(*key_node));
    QUAROT_ASSIGN_OR_RETURN(const Value value, evaluate(*value_node));
    insert(arena_, *dict, key, value);
  }
  return Value(static_cast<const Dict*>(dict));
}

Result<Value> Interpreter::run(const AttributeNode& node, uint32_t offset) {
  QUAROT_ASSIGN_OR_RETURN(const Value object, evaluate(*node.object));
  return at(offset, attribute(arena_, object, node.name));
}

Result<Value> Interpreter::run(const ItemNode& node, uint32_t offset) {
  QUAROT_ASSIGN_OR_RETURN(const Value object, evaluate(*node.object));
  QUAROT_ASSIGN_OR_RETURN(const Value index, evaluate(*node.index));
  return at(offset, item(arena_, object, index));
}

Result<Value> Interpreter::run(const SliceNode& node, uint32_t offset) {
  QUAROT_ASSIGN_OR_RETURN(const Value object, evaluate(*node.object));
  QUAROT_ASSIGN_OR_RETURN(const Value start, evaluate_or_none(node.start));
  QUAROT_ASSIGN_OR_RETURN(const Value stop, evaluate_or_none(node.stop));
  QUAROT_ASSIGN_OR_RETURN(const Value step, evaluate_or_none(node.step));
  return at(offset, slice(arena_, object, start, stop, step));
}

Result<Value> Interpreter::run(const CallNode& node, uint32_t offset) {
  return call(node, offset, nullptr);
}

// A builtin may look at all of a text.
void Interpreter::spend_on(const Value& input) {
  if (const auto* text = get<std::string_view>(input)) arena_.spend(text->size());
}

Result<Value> Interpreter::apply_filter(std::string_view name, const Value& input,
                                        const Arguments& arguments) {
  const Builtin filter = find_filter(name);
  if (filter == nullptr) return error(ErrorCode::kInvalidArgument, "no filter named '{}'", name);
  spend_on(input);
  Result<Value> result = filter(*this, input, arguments);
  if (result.ok()) return result;
  return result.error().with_context(fmt::format("filter {}", name));
}

Result<Value> Interpreter::run(const FilterNode& node, uint32_t offset) {
  Value input = filtered_;
  if (node.input) {
    QUAROT_ASSIGN_OR_RETURN(input, evaluate(*node.input));
  }
  QUAROT_ASSIGN_OR_RETURN(const Arguments arguments, evaluate(node.arguments, offset));
  return at(offset, apply_filter(node.name, input, arguments));
}

Result<bool> Interpreter::apply_test(std::string_view name, const Value& input,
                                     const Arguments& arguments) {
  const Builtin test = find_test(name);
  if (test == nullptr) return error(ErrorCode::kInvalidArgument, "no test named '{}'", name);
  spend_on(input);
  const Result<Value> result = test(*this, input, arguments);
  if (result.ok()) return truthy(*result);
  return result.error().with_context(fmt::format("test {}", name));
}

Result<Value> Interpreter::run(const TestNode& node, uint32_t offset) {
  QUAROT_ASSIGN_OR_RETURN(const Value input, evaluate(*node.input));
  QUAROT_ASSIGN_OR_RETURN(const Arguments arguments, evaluate(node.arguments, offset));
  QUAROT_ASSIGN_OR_RETURN(const bool holds, at(offset, apply_test(node.name, input, arguments)));
  return Value(holds);
}

Result<Value> Interpreter::run(const UnaryNode& node, uint32_t offset) {
  QUAROT_ASSIGN_OR_RETURN(const Value operand, evaluate(*node.operand));
  return at(offset, apply_unary(node.op, operand));
}

Result<Value> Interpreter::run(const BinaryNode& node, uint32_t offset) {
  QUAROT_ASSIGN_OR_RETURN(const Value left, evaluate(*node.left));
  QUAROT_ASSIGN_OR_RETURN(const Value right, evaluate(*node.right));
  return at(offset, apply_binary(arena_, node.op, left, right));
}

Result<Value> Interpreter::run(const LogicNode& node, uint32_t) {
  QUAROT_ASSIGN_OR_RETURN(const Value left, evaluate(*node.left));
  if (truthy(left) != node.conjunction) return left;
  return evaluate(*node.right);
}

Result<Value> Interpreter::run(const CompareNode& node, uint32_t offset) {
  QUAROT_ASSIGN_OR_RETURN(Value left, evaluate(*node.first));
  for (const auto& [op, expression] : node.rest) {
    QUAROT_ASSIGN_OR_RETURN(const Value right, evaluate(*expression));
    QUAROT_ASSIGN_OR_RETURN(const bool holds, at(offset, compare(arena_, op, left, right)));
    if (!holds) return Value(false);
    left = right;
  }
  return Value(true);
}

Result<Value> Interpreter::run(const ConditionalNode& node, uint32_t) {
  QUAROT_ASSIGN_OR_RETURN(const Value holds, evaluate(*node.condition));
  if (truthy(holds)) return evaluate(*node.then);
  if (!node.otherwise) return Value(Undefined{"the missing else of an if expression"});
  return evaluate(*node.otherwise);
}

}  // namespace quarot::jinja
