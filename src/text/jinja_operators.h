// Python's operators on template values. Errors carry no position; the interpreter adds it.
#pragma once

#include "quarot/status.h"
#include "text/jinja_ast.h"
#include "text/jinja_value.h"

namespace quarot::jinja {

// Integers are 64 bits wide; overflow is an error.
Result<Value> apply_binary(Arena& arena, BinaryOperator op, const Value& left, const Value& right);
Result<Value> apply_unary(UnaryOperator op, const Value& operand);
Result<bool> compare(Arena& arena, Comparison op, const Value& left, const Value& right);
// left < right of two numbers, strings, lists or tuples.
Result<bool> less(Arena& arena, const Value& left, const Value& right, int depth = 0);

// What a for statement runs over: items, characters, keys.
Result<std::vector<Value>> iterate(Arena& arena, const Value& value);
Result<int64_t> length(Arena& arena, const Value& value);

// value.name: attributes and methods first, then items. Undefined where there is none.
Result<Value> attribute(Arena& arena, const Value& object, std::string_view name);
// value[key]: items first, then attributes and methods.
Result<Value> item(Arena& arena, const Value& object, const Value& key);
// value[start:stop:step]; None stands for a part left out.
Result<Value> slice(Arena& arena, const Value& object, const Value& start, const Value& stop,
                    const Value& step);

// "'x' is undefined"
Error undefined_error(const Undefined& value);

}  // namespace quarot::jinja
