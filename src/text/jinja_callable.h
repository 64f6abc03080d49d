// What a template can call: functions written in C++ and macros written in the template.
#pragma once

#include <array>
#include <string_view>

#include "base/error.h"
#include "text/jinja_value.h"

namespace quarot::jinja {

class Interpreter;
struct MacroNode;

// Filters, tests, methods and global functions have one shape: `self` is what stands before the
// bar, `is` or the dot. Their errors carry no position; the interpreter adds it.
using Builtin = Result<Value> (*)(Interpreter& interpreter, const Value& self,
                                  const Arguments& arguments);

struct Callable {
  Builtin builtin = nullptr;
  Value self;
  const MacroNode* macro = nullptr;  // where builtin is null
  Scope* closure = nullptr;          // where the macro was defined
};

// The tables; null where there is no such name. Methods are those of `self`'s type.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);
Builtin find_global(std::string_view name);
Builtin find_method(const Value& self, std::string_view name);

// Binds a call to parameter names as Python does: by position, then by name. Null where an argument
// is not given; an error where one is unknown, given twice, or where fewer than `required` are.
template <size_t N>
Result<std::array<const Value*, N>> bind(const Arguments& arguments,
                                         const std::array<std::string_view, N>& names,
                                         size_t required = 0) {
  std::array<const Value*, N> bound{};
  if (arguments.positional.size() > N) {
    return error(ErrorCode::kInvalidArgument, "takes at most {} arguments, got {}", N,
                 arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    size_t i = 0;
    while (i < N && names[i] != name) ++i;
    if (i == N) return error(ErrorCode::kInvalidArgument, "has no argument '{}'", name);
    if (bound[i] != nullptr) {
      return error(ErrorCode::kInvalidArgument, "got argument '{}' twice", name);
    }
    bound[i] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i] == nullptr) {
      return error(ErrorCode::kInvalidArgument, "needs the argument '{}'", names[i]);
    }
  }
  return bound;
}

}  // namespace quarot::jinja
