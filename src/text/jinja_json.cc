#include "text/jinja_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/jinja_operators.h"
#include "text/jinja_text.h"

namespace quarot::jinja {

namespace {

std::string json_float(double value) {
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return std::isnan(value) ? "NaN" : float_repr(value);
}

void append_escaped_unit(std::string& out, uint32_t unit) { out += fmt::format("\\u{:04x}", unit); }

class Writer {
 public:
  Writer(Arena& arena, const JsonStyle& style) : arena_(arena), style_(style) {}

  Status write(const Value& value, int depth) {
    if (depth > Arena::kMaxDepth) {
      return error(ErrorCode::kUnsupported, "values are nested more than {} levels deep",
                   Arena::kMaxDepth);
    }
    if (!arena_.spend(Arena::kValueCost)) return {};
    if (is<None>(value)) {
      out_ += "null";
    } else if (const bool* flag = get<bool>(value)) {
      out_ += *flag ? "true" : "false";
    } else if (const int64_t* whole = get<int64_t>(value)) {
      out_ += fmt::format("{}", *whole);
    } else if (const double* real = get<double>(value)) {
      out_ += json_float(*real);
    } else if (const auto* text = get<std::string_view>(value)) {
      write_text(*text);
    } else if (const auto* dict = get<const Dict*>(value)) {
      return write_dict(**dict, depth);
    } else if (const auto* list = get<const Sequence*>(value);
               list != nullptr && (*list)->kind <= Sequence::Kind::kTuple) {
      return write_list(**list, depth);
    } else {
      return error(ErrorCode::kInvalidArgument, "{} cannot be written as JSON", type_name(value));
    }
    return {};
  }

  std::string take() { return std::move(out_); }

 private:
  void write_text(std::string_view text) {
    static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f";
    static constexpr std::string_view kTo = "\"\\nrtbf";
    if (!arena_.spend(6 * text.size())) return;
    out_ += '"';
    while (!text.empty()) {
      const std::string_view character = take_character(text);
      const auto byte = static_cast<unsigned char>(character.front());
      const size_t escape = kFrom.find(character);
      if (escape != std::string_view::npos) {
        out_ += '\\';
        out_ += kTo[escape];
      } else if (byte < 0x20 || (style_.ascii && byte >= 0x7F)) {
        write_unicode_escape(code_point(character));
      } else {
        out_ += character;
      }
    }
    out_ += '"';
  }

  void write_unicode_escape(int32_t point) {
    if (point == 0x7F) {
      out_ += '\x7F';  // Python counts it as printable
    } else if (point < 0x10000) {
      append_escaped_unit(out_, static_cast<uint32_t>(point));
    } else {
      const auto rest = static_cast<uint32_t>(point - 0x10000);
      append_escaped_unit(out_, 0xD800 + (rest >> 10));
      append_escaped_unit(out_, 0xDC00 + (rest & 0x3FF));
    }
  }

  // A line end and its indentation, `depth` levels deep.
  void new_line(int depth) {
    if (!style_.multiline) return;
    const auto levels = static_cast<size_t>(depth);
    if (!arena_.affords(levels, style_.indent.size())) return;
    arena_.spend(levels * style_.indent.size());
    out_ += '\n';
    for (size_t i = 0; i < levels; ++i) out_ += style_.indent;
  }

  void separate(bool first, int depth) {
    if (!first && arena_.spend(style_.item_separator.size())) out_ += style_.item_separator;
    new_line(depth);
  }

  Status write_list(const Sequence& list, int depth) {
    out_ += '[';
    for (size_t i = 0; i < list.items.size() && !arena_.overdrawn(); ++i) {
      separate(i == 0, depth + 1);
      QUAROT_RETURN_IF_ERROR(write(list.items[i], depth + 1));
    }
    if (!list.items.empty()) new_line(depth);
    out_ += ']';
    return {};
  }

  Status write_dict(const Dict& dict, int depth) {
    std::vector<std::pair<std::string_view, const Value*>> items;
    for (const auto& [key, value] : dict.items) {
      QUAROT_ASSIGN_OR_RETURN(const std::string_view text, key_text(key));
      items.emplace_back(text, &value);
    }
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    out_ += '{';
    for (size_t i = 0; i < items.size() && !arena_.overdrawn(); ++i) {
      separate(i == 0, depth + 1);
      write_text(items[i].first);
      if (arena_.spend(style_.key_separator.size())) out_ += style_.key_separator;
      QUAROT_RETURN_IF_ERROR(write(*items[i].second, depth + 1));
    }
    if (!items.empty()) new_line(depth);
    out_ += '}';
    return {};
  }

  Result<std::string_view> key_text(const Value& key) {
    if (const auto* text = get<std::string_view>(key)) return *text;
    if (is<None>(key)) return std::string_view("null");
    if (const bool* flag = get<bool>(key)) return std::string_view(*flag ? "true" : "false");
    if (is<int64_t>(key) || is<double>(key)) return str(arena_, key);
    return error(ErrorCode::kInvalidArgument, "{} cannot be a JSON key", type_name(key));
  }

  Arena& arena_;
  const JsonStyle& style_;
  std::string out_;
};

Result<Value> from_object(Arena& arena, const nlohmann::ordered_json& json, int depth) {
  Dict* dict = arena.make<Dict>();
  arena.spend(json.size() * 2 * sizeof(Value));
  for (const auto& [key, value] : json.items()) {
    QUAROT_ASSIGN_OR_RETURN(const Value converted, from_json(arena, value, depth + 1));
    dict->items.emplace_back(std::string_view(key), converted);
  }
  return Value(static_cast<const Dict*>(dict));
}

Result<Value> from_array(Arena& arena, const nlohmann::ordered_json& json, int depth) {
  std::vector<Value> items;
  for (const auto& value : json) {
    QUAROT_ASSIGN_OR_RETURN(const Value converted, from_json(arena, value, depth + 1));
    items.push_back(converted);
  }
  return arena.list(std::move(items));
}

}  // namespace

Result<Value> from_json(Arena& arena, const nlohmann::ordered_json& json, int depth) {
  if (depth > Arena::kMaxDepth) {
    return error(ErrorCode::kUnsupported, "JSON is nested more than {} levels deep",
                 Arena::kMaxDepth);
  }
  switch (json.type()) {
    case nlohmann::json::value_t::object:
      return from_object(arena, json, depth);
    case nlohmann::json::value_t::array:
      return from_array(arena, json, depth);
    case nlohmann::json::value_t::string:
      return Value(std::string_view(json.get_ref<const std::string&>()));
    case nlohmann::json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned: {
      const auto value = json.get<uint64_t>();
      if (value <= static_cast<uint64_t>(INT64_MAX)) return Value(static_cast<int64_t>(value));
      return error(ErrorCode::kUnsupported, "the integer {} does not fit 64 bits signed", value);
    }
    case nlohmann::json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::json::value_t::null:
      return Value(None{});
    default:
      return error(ErrorCode::kInvalidArgument, "a template cannot see binary JSON");
  }
}

Result<std::string> to_json(Arena& arena, const Value& value, const JsonStyle& style) {
  Writer writer(arena, style);
  QUAROT_RETURN_IF_ERROR(writer.write(value, 0));
  return writer.take();
}

}  // namespace quarot::jinja
