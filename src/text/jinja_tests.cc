// Tests: what stands after `is`.
// https://jinja.palletsprojects.com/en/stable/templates/#builtin-tests
#include <algorithm>
#include <unordered_map>

#include "text/jinja_callable.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"
#include "text/jinja_text.h"

namespace quarot::jinja {

namespace {

using Predicate = bool (*)(const Value&);

template <Predicate predicate>
Result<Value> holds(Interpreter&, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN([[maybe_unused]] const auto none, bind<0>(arguments, {}));
  return Value(predicate(self));
}

template <Comparison op>
Result<Value> compares(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"other"}, 1));
  QUAROT_ASSIGN_OR_RETURN(const bool result, compare(interpreter.arena(), op, self, *given[0]));
  return Value(result);
}

bool is_defined(const Value& value) { return !is<Undefined>(value); }
bool is_integer(const Value& value) { return is<int64_t>(value); }
bool is_number(const Value& value) {
  double unused = 0;
  return number(value, unused);
}
bool is_iterable(const Value& value) {
  return is<Undefined>(value) || is<std::string_view>(value) || is<const Dict*>(value) ||
         is<const Sequence*>(value);
}
bool is_sequence(const Value& value) {
  const auto* sequence = get<const Sequence*>(value);
  return sequence != nullptr ? (*sequence)->indexable() : is_iterable(value);
}
template <bool expected>
bool is_exactly(const Value& value) {
  const bool* flag = get<bool>(value);
  return flag != nullptr && *flag == expected;
}

// str.islower and str.isupper: cased letters, all of one case.
template <std::string (*map)(std::string_view), std::string (*other)(std::string_view)>
Result<Value> has_case(Interpreter& interpreter, const Value& self, const Arguments&) {
  const std::string_view text = str(interpreter.arena(), self);
  return Value(map(text) == text && other(text) != text);
}

Result<Value> divisible(Arena& arena, const Value& self, int64_t divisor, int64_t remainder) {
  QUAROT_ASSIGN_OR_RETURN(const Value modulo,
                          apply_binary(arena, BinaryOperator::kModulo, self, divisor));
  return Value(equal(arena, modulo, remainder));
}

Result<Value> even(Interpreter& interpreter, const Value& self, const Arguments&) {
  return divisible(interpreter.arena(), self, 2, 0);
}
Result<Value> odd(Interpreter& interpreter, const Value& self, const Arguments&) {
  return divisible(interpreter.arena(), self, 2, 1);
}
Result<Value> divisible_by(Interpreter& interpreter, const Value& self,
                           const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"num"}, 1));
  int64_t storage = 0;
  const int64_t* divisor = integer(*given[0], storage);
  if (divisor == nullptr) return Error(ErrorCode::kInvalidArgument, "needs an int");
  return divisible(interpreter.arena(), self, *divisor, 0);
}

// The same object: here, an equal value of the same type.
Result<Value> same_as(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"other"}, 1));
  if (const auto* sequence = get<const Sequence*>(self)) {
    const auto* other = get<const Sequence*>(*given[0]);
    return Value(other != nullptr && *sequence == *other);
  }
  return Value(self.index() == given[0]->index() && equal(interpreter.arena(), self, *given[0]));
}

template <Builtin (*find_builtin)(std::string_view)>
Result<Value> names(Interpreter& interpreter, const Value& self, const Arguments&) {
  return Value(find_builtin(str(interpreter.arena(), self)) != nullptr);
}

}  // namespace

Builtin find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, Builtin> kTests = {
      {"defined", holds<is_defined>},
      {"undefined", holds<is<Undefined>>},
      {"none", holds<is<None>>},
      {"string", holds<is<std::string_view>>},
      {"boolean", holds<is<bool>>},
      {"float", holds<is<double>>},
      {"integer", holds<is_integer>},
      {"number", holds<is_number>},
      {"mapping", holds<is<const Dict*>>},
      {"callable", holds<is<const Callable*>>},
      {"iterable", holds<is_iterable>},
      {"sequence", holds<is_sequence>},
      {"true", holds<is_exactly<true>>},
      {"false", holds<is_exactly<false>>},
      {"eq", compares<Comparison::kEqual>},
      {"equalto", compares<Comparison::kEqual>},
      {"==", compares<Comparison::kEqual>},
      {"ne", compares<Comparison::kNotEqual>},
      {"!=", compares<Comparison::kNotEqual>},
      {"lt", compares<Comparison::kLess>},
      {"lessthan", compares<Comparison::kLess>},
      {"<", compares<Comparison::kLess>},
      {"le", compares<Comparison::kLessEqual>},
      {"<=", compares<Comparison::kLessEqual>},
      {"gt", compares<Comparison::kGreater>},
      {"greaterthan", compares<Comparison::kGreater>},
      {">", compares<Comparison::kGreater>},
      {"ge", compares<Comparison::kGreaterEqual>},
      {">=", compares<Comparison::kGreaterEqual>},
      {"in", compares<Comparison::kIn>},
      {"lower", has_case<lower, upper>},
      {"upper", has_case<upper, lower>},
      {"even", even},
      {"odd", odd},
      {"divisibleby", divisible_by},
      {"sameas", same_as},
      {"filter", names<find_filter>},
      {"test", names<find_test>},
  };
  const auto found = kTests.find(name);
  return found == kTests.end() ? nullptr : found->second;
}

}  // namespace quarot::jinja
