// Reading the arguments of a builtin: each with what it is when not given.
#pragma once

#include <string_view>

#include "base/error.h"
#include "text/jinja_value.h"

namespace quarot::jinja {

inline Result<std::string_view> text_argument(const Value* given, std::string_view otherwise = {}) {
  if (given == nullptr) return otherwise;
  if (const auto* text = get<std::string_view>(*given)) return *text;
  return error(ErrorCode::kInvalidArgument, "needs a str, got {}", type_name(*given));
}

inline Result<int64_t> integer_argument(const Value* given, int64_t otherwise) {
  if (given == nullptr) return otherwise;
  int64_t storage = 0;
  if (const int64_t* whole = integer(*given, storage)) return *whole;
  return error(ErrorCode::kInvalidArgument, "needs an int, got {}", type_name(*given));
}

inline bool flag_argument(const Value* given, bool otherwise = false) {
  return given == nullptr ? otherwise : truthy(*given);
}

}  // namespace quarot::jinja
