// Making errors and passing them on: the library's everyday half of quarot/status.h.
#pragma once

#include <fmt/format.h>

#include "quarot/status.h"

namespace quarot {

// error(ErrorCode::kCorrupt, "{}: {} bytes, expected {}", path, found, expected)
template <typename... Args>
Error error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace quarot

// Leaves the function with the error, if there is one.
#define QUAROT_RETURN_IF_ERROR(expression)                               \
  do {                                                                   \
    if (const auto& quarot_status = (expression); !quarot_status.ok()) { \
      return quarot_status.error();                                      \
    }                                                                    \
  } while (false)

// QUAROT_ASSIGN_OR_RETURN(auto file, MappedFile::open(path)): declares or assigns the value, or
// leaves the function with the error.
// NOLINTBEGIN(bugprone-macro-parentheses): `target` may be a declaration.
#define QUAROT_ASSIGN_OR_RETURN(target, expression) \
  QUAROT_ASSIGN_OR_RETURN_(QUAROT_CONCAT_(quarot_result_, __LINE__), target, expression)
#define QUAROT_ASSIGN_OR_RETURN_(result, target, expression) \
  auto result = (expression);                                \
  if (!result.ok()) return result.error();                   \
  target = *std::move(result)
#define QUAROT_CONCAT_(a, b) QUAROT_CONCAT2_(a, b)
#define QUAROT_CONCAT2_(a, b) a##b
// NOLINTEND(bugprone-macro-parentheses)
