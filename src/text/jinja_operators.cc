#include "text/jinja_operators.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/jinja_callable.h"
#include "text/jinja_text.h"

namespace quarot::jinja {

namespace {

std::string_view symbol(BinaryOperator op) {
  static constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**", "~"};
  return kSymbols[static_cast<size_t>(op)];
}

Error type_error(BinaryOperator op, const Value& left, const Value& right) {
  if (const auto* missing = get<Undefined>(left)) return undefined_error(*missing);
  if (const auto* missing = get<Undefined>(right)) return undefined_error(*missing);
  return error(ErrorCode::kInvalidArgument, "cannot compute {} {} {}", type_name(left), symbol(op),
               type_name(right));
}

Error overflow(BinaryOperator op) {
  return error(ErrorCode::kInvalidArgument, "the result of {} does not fit 64 bits", symbol(op));
}

Error division_by_zero() { return {ErrorCode::kInvalidArgument, "division by zero"}; }

Result<Value> integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return division_by_zero();
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t power = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(power, base, &power)) {
      return overflow(BinaryOperator::kPower);
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) {
      return overflow(BinaryOperator::kPower);
    }
  }
  return Value(power);
}

// Python rounds quotients down, so a remainder has the sign of the divisor.
int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

Result<Value> integer_operation(BinaryOperator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool fits = true;
  switch (op) {
    case BinaryOperator::kAdd:
      fits = !__builtin_add_overflow(a, b, &result);
      break;
    case BinaryOperator::kSubtract:
      fits = !__builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOperator::kMultiply:
      fits = !__builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOperator::kPower:
      return integer_power(a, b);
    default:
      if (b == 0) return division_by_zero();
      if (op == BinaryOperator::kDivide) {
        return Value(static_cast<double>(a) / static_cast<double>(b));
      }
      if (b == -1) {  // INT64_MIN / -1 traps
        fits = op == BinaryOperator::kModulo || !__builtin_sub_overflow(int64_t{0}, a, &result);
      } else {
        const int64_t quotient = floor_divide(a, b);
        result = op == BinaryOperator::kModulo ? a - quotient * b : quotient;
      }
  }
  if (!fits) return overflow(op);
  return Value(result);
}

Result<Value> float_operation(BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::kAdd:
      return Value(a + b);
    case BinaryOperator::kSubtract:
      return Value(a - b);
    case BinaryOperator::kMultiply:
      return Value(a * b);
    case BinaryOperator::kPower:
      return Value(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return division_by_zero();
  if (op == BinaryOperator::kDivide) return Value(a / b);
  if (op == BinaryOperator::kFloorDivide) return Value(std::floor(a / b));
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return Value(remainder);
}

Value repeat(Arena& arena, const Value& value, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (const auto* text = get<std::string_view>(value)) {
    std::string repeated;
    if (arena.affords(times, text->size()) && !text->empty()) {
      repeated.reserve(times * text->size());
      for (size_t i = 0; i < times; ++i) repeated += *text;
    }
    return arena.text(std::move(repeated));
  }
  const Sequence& sequence = **get<const Sequence*>(value);
  std::vector<Value> items;
  if (arena.affords(times, sequence.items.size() * sizeof(Value)) && !sequence.items.empty()) {
    items.reserve(times * sequence.items.size());
    for (size_t i = 0; i < times; ++i) {
      items.insert(items.end(), sequence.items.begin(), sequence.items.end());
    }
  }
  return arena.sequence(sequence.kind, std::move(items));
}

bool repeatable(const Value& value) {
  if (is<std::string_view>(value)) return true;
  const auto* sequence = get<const Sequence*>(value);
  return sequence != nullptr && (*sequence)->kind <= Sequence::Kind::kTuple;
}

// + of two strings, lists or tuples; nothing else can be concatenated.
const Value* concatenate(Arena& arena, const Value& left, const Value& right, Value& result) {
  const auto* text = get<std::string_view>(left);
  const auto* more_text = get<std::string_view>(right);
  if (text != nullptr && more_text != nullptr) {
    std::string joined;
    joined.reserve(text->size() + more_text->size());
    joined.append(*text).append(*more_text);
    result = arena.text(std::move(joined));
    return &result;
  }
  const auto* list = get<const Sequence*>(left);
  const auto* more = get<const Sequence*>(right);
  if (list == nullptr || more == nullptr || !repeatable(left) || (*list)->kind != (*more)->kind) {
    return nullptr;
  }
  std::vector<Value> items = (*list)->items;
  items.insert(items.end(), (*more)->items.begin(), (*more)->items.end());
  result = arena.sequence((*list)->kind, std::move(items));
  return &result;
}

// At most so many items come out of iterate().
Result<size_t> iterations(const Value& value) {
  if (const auto* sequence = get<const Sequence*>(value)) return (*sequence)->items.size();
  if (const auto* text = get<std::string_view>(value)) return text->size();
  if (const auto* dict = get<const Dict*>(value)) return (*dict)->items.size();
  return error(ErrorCode::kInvalidArgument, "{} cannot be iterated over", type_name(value));
}

Result<bool> contains(Arena& arena, const Value& container, const Value& value) {
  if (const auto* text = get<std::string_view>(container)) {
    const auto* part = get<std::string_view>(value);
    if (part == nullptr) {
      return error(ErrorCode::kInvalidArgument, "'in' a str needs a str on the left, got {}",
                   type_name(value));
    }
    arena.spend(text->size());
    return text->find(*part) != std::string_view::npos;
  }
  if (const auto* dict = get<const Dict*>(container)) return find(arena, **dict, value) != nullptr;
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(arena, container));
  for (const Value& one : items) {
    if (equal(arena, one, value)) return true;
    if (arena.overdrawn()) break;
  }
  return false;
}

}  // namespace

Error undefined_error(const Undefined& value) {
  return error(ErrorCode::kInvalidArgument, "'{}' is undefined", value.name);
}

Result<Value> apply_binary(Arena& arena, BinaryOperator op, const Value& left, const Value& right) {
  if (op == BinaryOperator::kJoin) {
    std::string joined;
    append_str(arena, joined, left);
    append_str(arena, joined, right);
    return Value(arena.text(std::move(joined)));
  }
  int64_t left_storage = 0;
  int64_t right_storage = 0;
  const int64_t* a = integer(left, left_storage);
  const int64_t* b = integer(right, right_storage);
  if (a != nullptr && b != nullptr) return integer_operation(op, *a, *b);
  double x = 0;
  double y = 0;
  if (number(left, x) && number(right, y)) return float_operation(op, x, y);
  Value result;
  if (op == BinaryOperator::kAdd && concatenate(arena, left, right, result)) return result;
  if (op == BinaryOperator::kMultiply && b != nullptr && repeatable(left)) {
    return repeat(arena, left, *b);
  }
  if (op == BinaryOperator::kMultiply && a != nullptr && repeatable(right)) {
    return repeat(arena, right, *a);
  }
  return type_error(op, left, right);
}

Result<Value> apply_unary(UnaryOperator op, const Value& operand) {
  if (op == UnaryOperator::kNot) return Value(!truthy(operand));
  if (const double* real = get<double>(operand)) {
    return Value(op == UnaryOperator::kMinus ? -*real : *real);
  }
  int64_t storage = 0;
  const int64_t* whole = integer(operand, storage);
  if (whole != nullptr && op == UnaryOperator::kPlus) return Value(*whole);
  if (whole != nullptr) return integer_operation(BinaryOperator::kSubtract, 0, *whole);
  if (const auto* missing = get<Undefined>(operand)) return undefined_error(*missing);
  return error(ErrorCode::kInvalidArgument, "{} has no sign", type_name(operand));
}

Result<bool> less(Arena& arena, const Value& left, const Value& right, int depth) {
  if (depth > Arena::kMaxDepth) arena.overdraw("values are nested too deeply to be compared");
  if (!arena.spend(Arena::kValueCost)) return false;
  int64_t left_storage = 0;
  int64_t right_storage = 0;
  const int64_t* a = integer(left, left_storage);
  const int64_t* b = integer(right, right_storage);
  if (a != nullptr && b != nullptr) return *a < *b;
  double x = 0;
  double y = 0;
  if (number(left, x) && number(right, y)) return x < y;
  const auto* text = get<std::string_view>(left);
  const auto* other = get<std::string_view>(right);
  if (text != nullptr && other != nullptr) {
    arena.spend(std::min(text->size(), other->size()));
    return *text < *other;  // the order of UTF-8 is that of its code points
  }
  if (repeatable(left) && repeatable(right) && text == nullptr && other == nullptr) {
    const Sequence& one = **get<const Sequence*>(left);
    const Sequence& two = **get<const Sequence*>(right);
    const size_t common = std::min(one.items.size(), two.items.size());
    for (size_t i = 0; i < common && one.kind == two.kind; ++i) {
      if (equal(arena, one.items[i], two.items[i])) continue;
      return less(arena, one.items[i], two.items[i], depth + 1);
    }
    if (one.kind == two.kind) return one.items.size() < two.items.size();
  }
  if (const auto* missing = get<Undefined>(left)) return undefined_error(*missing);
  if (const auto* missing = get<Undefined>(right)) return undefined_error(*missing);
  return error(ErrorCode::kInvalidArgument, "cannot order {} and {}", type_name(left),
               type_name(right));
}

Result<bool> compare(Arena& arena, Comparison op, const Value& left, const Value& right) {
  switch (op) {
    case Comparison::kEqual:
      return equal(arena, left, right);
    case Comparison::kNotEqual:
      return !equal(arena, left, right);
    case Comparison::kLess:
      return less(arena, left, right);
    case Comparison::kGreater:
      return less(arena, right, left);
    case Comparison::kIn:
      return contains(arena, right, left);
    case Comparison::kNotIn: {
      QUAROT_ASSIGN_OR_RETURN(const bool found, contains(arena, right, left));
      return !found;
    }
    default:
      break;
  }
  const bool swapped = op == Comparison::kGreaterEqual;
  QUAROT_ASSIGN_OR_RETURN(const bool below,
                          less(arena, swapped ? right : left, swapped ? left : right));
  return below || equal(arena, left, right);
}

Result<std::vector<Value>> iterate(Arena& arena, const Value& value) {
  if (is<Undefined>(value)) return std::vector<Value>();
  QUAROT_ASSIGN_OR_RETURN(const size_t count, iterations(value));
  std::vector<Value> items;
  if (!arena.spend(count * sizeof(Value))) return items;
  if (const auto* sequence = get<const Sequence*>(value)) return (*sequence)->items;
  if (const auto* text = get<std::string_view>(value)) {
    for (const std::string_view character : characters(*text)) items.emplace_back(character);
    return items;
  }
  for (const auto& [key, unused] : (*get<const Dict*>(value))->items) items.push_back(key);
  return items;
}

Result<int64_t> length(Arena& arena, const Value& value) {
  if (is<Undefined>(value)) return int64_t{0};
  if (const auto* text = get<std::string_view>(value)) {
    arena.spend(text->size());
    return character_count(*text);
  }
  if (const auto* dict = get<const Dict*>(value)) {
    return static_cast<int64_t>((*dict)->items.size());
  }
  const auto* sequence = get<const Sequence*>(value);
  if (sequence != nullptr && (*sequence)->kind != Sequence::Kind::kStream) {
    return static_cast<int64_t>((*sequence)->items.size());
  }
  return error(ErrorCode::kInvalidArgument, "{} has no length", type_name(value));
}

}  // namespace quarot::jinja
