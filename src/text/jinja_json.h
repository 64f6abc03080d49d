// JSON in, and out as Python's json.dumps writes it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "quarot/status.h"
#include "text/jinja_value.h"

namespace quarot::jinja {

// Strings stay where they are: `json` must outlive the value.
Result<Value> from_json(Arena& arena, const nlohmann::ordered_json& json, int depth = 0);

struct JsonStyle {
  bool ascii = false;      // \uXXXX for what is not ASCII
  bool sort_keys = false;  // by their text
  bool multiline = false;  // each item on its line, `indent` a level
  std::string_view indent;
  std::string_view item_separator = ", ";
  std::string_view key_separator = ": ";
};
// https://docs.python.org/3/library/json.html#json.dumps
Result<std::string> to_json(Arena& arena, const Value& value, const JsonStyle& style);

}  // namespace quarot::jinja
