// Statements; expressions are in jinja_evaluate.cc.
#include "text/jinja_interpreter.h"

#include <utility>

#include "base/error.h"
#include "text/jinja_lexer.h"
#include "text/jinja_operators.h"

namespace quarot::jinja {

// A new scope inside `parent` until the end of the C++ scope.
class Interpreter::Inside {
 public:
  Inside(Interpreter& interpreter, Scope* parent)
      : interpreter_(interpreter),
        outside_(std::exchange(interpreter.scope_, interpreter.arena_.make<Scope>({parent, {}}))) {}
  explicit Inside(Interpreter& interpreter) : Inside(interpreter, interpreter.scope_) {}
  ~Inside() { interpreter_.scope_ = outside_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Interpreter& interpreter_;
  Scope* outside_;
};

Result<std::string> Interpreter::render(const Block& block) {
  QUAROT_ASSIGN_OR_RETURN([[maybe_unused]] const Flow flow, execute(block));
  QUAROT_RETURN_IF_ERROR(check(static_cast<uint32_t>(source_.size())));
  return std::move(output_);
}

Error Interpreter::fail(uint32_t offset, const Error& error) const {
  return error_at(source_, offset, error.code(), error.message());
}

Status Interpreter::check(uint32_t offset) const {
  if (arena_.overdrawn()) {
    return fail(offset, Error(ErrorCode::kUnsupported, std::string(arena_.reason())));
  }
  if (depth_ > kMaxCallDepth) {
    return fail(offset, error(ErrorCode::kUnsupported,
                              "evaluation is nested more than {} levels "
                              "deep: does a macro call itself?",
                              kMaxCallDepth));
  }
  if (output_.size() > kMaxOutputBytes) {
    return fail(offset, error(ErrorCode::kUnsupported, "the output is longer than {} bytes",
                              kMaxOutputBytes));
  }
  return {};
}

Result<Interpreter::Flow> Interpreter::execute(const Block& block) {
  ++depth_;
  Flow flow = Flow::kNext;
  for (const Statement& statement : block) {
    arena_.spend(Arena::kNodeCost);
    QUAROT_RETURN_IF_ERROR(check(statement.offset));
    QUAROT_ASSIGN_OR_RETURN(
        flow, std::visit([&](const auto& node) { return execute(node, statement.offset); },
                         statement.node));
    if (flow != Flow::kNext) break;
  }
  --depth_;
  return flow;
}

Result<Interpreter::Flow> Interpreter::execute_inside(const Block& block) {
  const Inside inside(*this);
  return execute(block);
}

Result<Interpreter::Flow> Interpreter::execute(const TextNode& node, uint32_t) {
  arena_.spend(node.text.size());
  output_ += node.text;
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute(const PrintNode& node, uint32_t offset) {
  QUAROT_ASSIGN_OR_RETURN(const Value value, evaluate(*node.value));
  QUAROT_RETURN_IF_ERROR(print(value, offset));
  return Flow::kNext;
}

Status Interpreter::print(const Value& value, uint32_t offset) {
  append_str(arena_, output_, value);
  return check(offset);
}

Result<Interpreter::Flow> Interpreter::execute(const IfNode& node, uint32_t) {
  for (const auto& [condition, block] : node.branches) {
    QUAROT_ASSIGN_OR_RETURN(const Value holds, evaluate(*condition));
    if (truthy(holds)) return execute(block);
  }
  return execute(node.otherwise);
}

// The items that pass the condition, which sees the loop's target but not its `loop`.
Result<std::vector<Value>> Interpreter::loop_items(const ForNode& node) {
  QUAROT_ASSIGN_OR_RETURN(const Value value, evaluate(*node.items));
  QUAROT_ASSIGN_OR_RETURN(std::vector<Value> items, at(node.items->offset, iterate(arena_, value)));
  if (!node.condition) return items;
  std::vector<Value> kept;
  for (const Value& one : items) {
    const Inside inside(*this);
    QUAROT_RETURN_IF_ERROR(assign(node.target, one));
    QUAROT_ASSIGN_OR_RETURN(const Value keep, evaluate(*node.condition));
    if (truthy(keep)) kept.push_back(one);
  }
  return kept;
}

Result<Interpreter::Flow> Interpreter::execute(const ForNode& node, uint32_t) {
  QUAROT_ASSIGN_OR_RETURN(std::vector<Value> found, loop_items(node));
  if (found.empty()) return execute_inside(node.otherwise);
  const Value held = arena_.list(std::move(found));
  const std::vector<Value>& items = (*get<const Sequence*>(held))->items;
  Loop* loop = arena_.make<Loop>({&items, 0});
  for (size_t i = 0; i < items.size(); ++i) {
    loop->index = i;
    const Inside inside(*this);
    define("loop", static_cast<const Loop*>(loop));
    QUAROT_RETURN_IF_ERROR(assign(node.target, items[i]));
    QUAROT_ASSIGN_OR_RETURN(const Flow flow, execute(node.body));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute(const SetNode& node, uint32_t) {
  QUAROT_ASSIGN_OR_RETURN(const Value value, evaluate(*node.value));
  QUAROT_RETURN_IF_ERROR(assign(node.target, value));
  return Flow::kNext;
}

Result<Value> Interpreter::capture(const Block& block) {
  std::string outside = std::exchange(output_, std::string());
  QUAROT_ASSIGN_OR_RETURN([[maybe_unused]] const Flow flow, execute_inside(block));
  return Value(arena_.text(std::exchange(output_, std::move(outside))));
}

Result<Value> Interpreter::filter_text(const Expression& filter, const Value& text) {
  const Value outside = std::exchange(filtered_, text);
  Result<Value> result = evaluate(filter);
  filtered_ = outside;
  return result;
}

Result<Interpreter::Flow> Interpreter::execute(const SetBlockNode& node, uint32_t) {
  QUAROT_ASSIGN_OR_RETURN(Value text, capture(node.body));
  if (node.filter) {
    QUAROT_ASSIGN_OR_RETURN(text, filter_text(*node.filter, text));
  }
  QUAROT_RETURN_IF_ERROR(assign(node.target, text));
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute(const WithNode& node, uint32_t) {
  std::vector<Value> values;
  for (const auto& [target, expression] : node.assignments) {
    QUAROT_ASSIGN_OR_RETURN(Value value, evaluate(*expression));
    values.push_back(value);
  }
  const Inside inside(*this);
  for (size_t i = 0; i < values.size(); ++i) {
    QUAROT_RETURN_IF_ERROR(assign(node.assignments[i].first, values[i]));
  }
  return execute(node.body);
}

Result<Interpreter::Flow> Interpreter::execute(const MacroNode& node, uint32_t) {
  define(node.name,
         static_cast<const Callable*>(arena_.make<Callable>({nullptr, Value(), &node, scope_})));
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute(const CallBlockNode& node, uint32_t offset) {
  QUAROT_ASSIGN_OR_RETURN(
      const Value text, call(std::get<CallNode>(node.call->node), node.call->offset, &node.caller));
  QUAROT_RETURN_IF_ERROR(print(text, offset));
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute(const FilterBlockNode& node, uint32_t offset) {
  QUAROT_ASSIGN_OR_RETURN(Value text, capture(node.body));
  QUAROT_ASSIGN_OR_RETURN(text, filter_text(*node.filter, text));
  QUAROT_RETURN_IF_ERROR(print(text, offset));
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute(const GenerationNode& node, uint32_t) {
  return execute_inside(node.body);
}

Result<Interpreter::Flow> Interpreter::execute(Jump node, uint32_t) {
  return node == Jump::kBreak ? Flow::kBreak : Flow::kContinue;
}

Value Interpreter::variable(std::string_view name) const {
  for (const auto& [known, value] : globals_->names) {
    if (known == name) return value;
  }
  return Undefined{name};
}

Value Interpreter::look_up(std::string_view name) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    arena_.spend(scope->names.size());
    for (const auto& [known, value] : scope->names) {
      if (known == name) return value;
    }
  }
  if (const Builtin builtin = find_global(name)) {
    return static_cast<const Callable*>(
        arena_.make<Callable>({builtin, Value(), nullptr, nullptr}));
  }
  return Undefined{name};
}

void Interpreter::define(std::string_view name, const Value& value) {
  arena_.spend(scope_->names.size());
  for (auto& [known, old] : scope_->names) {
    if (known == name) {
      old = value;
      return;
    }
  }
  arena_.spend(sizeof(Value) + sizeof(std::string_view));
  scope_->names.emplace_back(name, value);
}

Status Interpreter::assign(const Target& target, const Value& value) {
  if (!target.items.empty()) return assign_items(target, value);
  if (!target.attribute.empty()) return assign_attribute(target, value);
  define(target.name, value);
  return {};
}

Status Interpreter::assign_items(const Target& target, const Value& value) {
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items,
                          at(target.offset, iterate(arena_, value)));
  if (items.size() != target.items.size()) {
    return fail(target.offset,
                error(ErrorCode::kInvalidArgument, "{} values expected to unpack, found {}",
                      target.items.size(), items.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    QUAROT_RETURN_IF_ERROR(assign(target.items[i], items[i]));
  }
  return {};
}

Status Interpreter::assign_attribute(const Target& target, const Value& value) {
  const Value object = look_up(target.name);
  const auto* names = get<Namespace*>(object);
  if (names == nullptr) {
    return fail(target.offset, error(ErrorCode::kInvalidArgument,
                                     "only a namespace's attributes can be set, '{}' is {}",
                                     target.name, type_name(object)));
  }
  arena_.spend((*names)->attributes.size());
  for (auto& [known, old] : (*names)->attributes) {
    if (known == target.attribute) {
      old = value;
      return {};
    }
  }
  arena_.spend(sizeof(Value) + sizeof(std::string_view));
  (*names)->attributes.emplace_back(target.attribute, value);
  return {};
}

Result<Value> Interpreter::call(const CallNode& node, uint32_t offset, const MacroNode* caller) {
  QUAROT_ASSIGN_OR_RETURN(const Value callee, evaluate(*node.callee));
  QUAROT_ASSIGN_OR_RETURN(Arguments arguments, evaluate(node.arguments, offset));
  if (caller != nullptr) {
    const Callable* block = arena_.make<Callable>({nullptr, Value(), caller, scope_});
    arguments.named.emplace_back("caller", block);
  }
  if (const auto* missing = get<Undefined>(callee)) {
    return fail(offset, undefined_error(*missing));
  }
  const auto* callable = get<const Callable*>(callee);
  if (callable == nullptr) {
    return fail(offset,
                error(ErrorCode::kInvalidArgument, "{} cannot be called", type_name(callee)));
  }
  if ((*callable)->macro != nullptr) return call_macro(**callable, std::move(arguments), offset);
  spend_on((*callable)->self);
  return at(offset, (*callable)->builtin(*this, (*callable)->self, arguments));
}

Result<Value> Interpreter::call_macro(const Callable& macro, Arguments arguments, uint32_t offset) {
  const Inside inside(*this, macro.closure);
  QUAROT_RETURN_IF_ERROR(bind_parameters(*macro.macro, arguments, offset));
  return capture(macro.macro->body);
}

// Parameters, then varargs and kwargs with what is left over. A missing one is undefined.
Status Interpreter::bind_parameters(const MacroNode& macro, Arguments& arguments, uint32_t offset) {
  std::vector<Value>& given = arguments.positional;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, fallback] = macro.parameters[i];
    Value value = Undefined{name};
    bool found = i < given.size();
    if (found) value = given[i];
    for (auto named = arguments.named.begin(); named != arguments.named.end(); ++named) {
      if (named->first != name) continue;
      if (found) {
        return fail(offset, error(ErrorCode::kInvalidArgument, "macro '{}' got '{}' twice",
                                  macro.name, name));
      }
      value = named->second;
      arguments.named.erase(named);
      found = true;
      break;
    }
    if (!found && fallback) {
      QUAROT_ASSIGN_OR_RETURN(value, evaluate(*fallback));
    }
    define(name, value);
  }
  const size_t used = std::min(given.size(), macro.parameters.size());
  given.erase(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(used));
  define("varargs", arena_.sequence(Sequence::Kind::kTuple, std::move(given)));
  Dict* rest = arena_.make<Dict>();
  for (const auto& [name, value] : arguments.named) {
    if (name == "caller") {
      define(name, value);
    } else {
      insert(arena_, *rest, name, value);
    }
  }
  define("kwargs", static_cast<const Dict*>(rest));
  return {};
}

}  // namespace quarot::jinja
