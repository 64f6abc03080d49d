// Filters of one value.
// https://jinja.palletsprojects.com/en/stable/templates/#builtin-filters
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "text/jinja_arguments.h"
#include "text/jinja_filters.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_json.h"
#include "text/jinja_operators.h"
#include "text/jinja_string.h"
#include "text/jinja_text.h"

namespace quarot::jinja {

namespace {

template <std::string (*map)(std::string_view)>
Result<Value> mapped(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN([[maybe_unused]] const auto none, bind<0>(arguments, {}));
  Arena& arena = interpreter.arena();
  return Value(arena.text(map(str(arena, self))));
}

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&#34;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

Result<Value> string_filter(Interpreter& interpreter, const Value& self, const Arguments&) {
  return Value(str(interpreter.arena(), self));
}

Result<Value> trim(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"chars"}));
  const std::string_view text = str(interpreter.arena(), self);
  if (given[0] == nullptr || is<None>(*given[0])) return Value(strip(text, Side::kBoth));
  QUAROT_ASSIGN_OR_RETURN(const std::string_view set, text_argument(given[0]));
  return Value(strip(text, Side::kBoth, &set));
}

Result<Value> replace_filter(Interpreter& interpreter, const Value& self,
                             const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<3>(arguments, {"old", "new", "count"}, 2));
  Arena& arena = interpreter.arena();
  const bool all = given[2] == nullptr || is<None>(*given[2]);
  QUAROT_ASSIGN_OR_RETURN(const int64_t count, integer_argument(all ? nullptr : given[2], -1));
  return Value(
      replace(arena, str(arena, self), str(arena, *given[0]), str(arena, *given[1]), count));
}

Result<Value> default_filter(Interpreter&, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<2>(arguments, {"default_value", "boolean"}));
  const bool missing = is<Undefined>(self) || (flag_argument(given[1]) && !truthy(self));
  if (!missing) return self;
  return given[0] != nullptr ? *given[0] : Value(std::string_view());
}

Result<Value> indent(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<3>(arguments, {"width", "first", "blank"}));
  Arena& arena = interpreter.arena();
  std::string_view margin = "    ";
  if (given[0] != nullptr && is<std::string_view>(*given[0])) {
    margin = *get<std::string_view>(*given[0]);
  } else if (given[0] != nullptr) {
    QUAROT_ASSIGN_OR_RETURN(const Value spaces, apply_binary(arena, BinaryOperator::kMultiply,
                                                             std::string_view(" "), *given[0]));
    if (is<std::string_view>(spaces)) margin = *get<std::string_view>(spaces);
  }
  const bool first = flag_argument(given[1]);
  const bool blank = flag_argument(given[2]);
  const std::string text = std::string(str(arena, self)) + "\n";
  std::string out;
  bool at_first = true;
  for (const std::string_view line : split_lines(text, false)) {
    if (!at_first) out += '\n';
    const bool wanted = at_first ? first : (blank || !line.empty());
    if (wanted && arena.spend(margin.size())) out += margin;
    out += line;
    at_first = false;
  }
  return Value(arena.text(std::move(out)));
}

// The int in a text, as Python's int() reads it.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  text = strip(text, Side::kBoth);
  if (text.starts_with('+')) text.remove_prefix(1);
  std::string digits(text);
  std::erase(digits, '_');
  int64_t value = 0;
  const char* last = digits.data() + digits.size();
  const auto [end, code] = std::from_chars(digits.data(), last, value, static_cast<int>(base));
  if (code != std::errc() || end != last) return std::nullopt;
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  const std::string stripped(strip(text, Side::kBoth));
  if (stripped.empty() || stripped.find_first_of("xXpP(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(stripped.c_str(), &end);
  if (end != stripped.c_str() + stripped.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> to_integer(double value) {
  if (!(std::abs(value) < 0x1p63)) return std::nullopt;
  return static_cast<int64_t>(value);
}

Result<Value> int_filter(Interpreter&, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<2>(arguments, {"default", "base"}));
  QUAROT_ASSIGN_OR_RETURN(const int64_t base, integer_argument(given[1], 10));
  if (base < 2 || base > 36) return Error(ErrorCode::kInvalidArgument, "base 2 to 36 expected");
  std::optional<int64_t> value;
  int64_t storage = 0;
  if (const int64_t* whole = integer(self, storage)) value = *whole;
  if (const double* real = get<double>(self)) value = to_integer(*real);
  if (const auto* text = get<std::string_view>(self)) {
    value = parse_integer(*text, base);
    const std::optional<double> real = value ? std::nullopt : parse_float(*text);
    if (real) value = to_integer(*real);
  }
  if (value) return Value(*value);
  return given[0] != nullptr ? *given[0] : Value(int64_t{0});
}

Result<Value> float_filter(Interpreter&, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"default"}));
  double real = 0;
  if (number(self, real)) return Value(real);
  if (const auto* text = get<std::string_view>(self)) {
    if (const std::optional<double> value = parse_float(*text)) return Value(*value);
  }
  return given[0] != nullptr ? *given[0] : Value(0.0);
}

Result<Value> abs_filter(Interpreter&, const Value& self, const Arguments&) {
  if (const double* real = get<double>(self)) return Value(std::abs(*real));
  int64_t storage = 0;
  const int64_t* whole = integer(self, storage);
  if (whole == nullptr)
    return error(ErrorCode::kInvalidArgument, "{} has no size", type_name(self));
  if (*whole >= 0) return Value(*whole);
  return apply_unary(UnaryOperator::kMinus, *whole);
}

Result<Value> round_filter(Interpreter&, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<2>(arguments, {"precision", "method"}));
  QUAROT_ASSIGN_OR_RETURN(const int64_t precision, integer_argument(given[0], 0));
  QUAROT_ASSIGN_OR_RETURN(const std::string_view method, text_argument(given[1], "common"));
  double real = 0;
  if (!number(self, real)) {
    return error(ErrorCode::kInvalidArgument, "{} cannot be rounded", type_name(self));
  }
  if (precision < 0 || precision > 300) {
    return Error(ErrorCode::kUnsupported, "a precision of 0 to 300 digits expected");
  }
  const double power = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value(std::ceil(real * power) / power);
  if (method == "floor") return Value(std::floor(real * power) / power);
  if (method != "common") {
    return Error(ErrorCode::kInvalidArgument, "the method common, ceil or floor expected");
  }
  int64_t storage = 0;
  if (const int64_t* whole = integer(self, storage)) return Value(*whole);
  if (!std::isfinite(real)) return Value(real);
  const std::string digits = fmt::format("{:.{}f}", real, precision);
  return Value(std::strtod(digits.c_str(), nullptr));
}

// separators=(item, key)
Status read_separators(Arena& arena, const Value& value, JsonStyle& style) {
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> both, iterate(arena, value));
  if (both.size() != 2) return Error(ErrorCode::kInvalidArgument, "two separators expected");
  QUAROT_ASSIGN_OR_RETURN(style.item_separator, text_argument(both.data()));
  QUAROT_ASSIGN_OR_RETURN(style.key_separator, text_argument(&both[1]));
  return {};
}

// transformers' tojson: json.dumps that keeps what is not ASCII and escapes no HTML.
Result<Value> to_json_filter(Interpreter& interpreter, const Value& self,
                             const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(
      const auto given, bind<4>(arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  Arena& arena = interpreter.arena();
  JsonStyle style;
  style.ascii = flag_argument(given[0]);
  style.sort_keys = flag_argument(given[3]);
  if (given[1] != nullptr && !is<None>(*given[1])) {
    style.multiline = true;
    style.item_separator = ",";
    Value margin = *given[1];
    if (!is<std::string_view>(margin)) {
      QUAROT_ASSIGN_OR_RETURN(
          margin, apply_binary(arena, BinaryOperator::kMultiply, std::string_view(" "), margin));
    }
    QUAROT_ASSIGN_OR_RETURN(style.indent, text_argument(&margin));
  }
  if (given[2] != nullptr && !is<None>(*given[2])) {
    QUAROT_RETURN_IF_ERROR(read_separators(arena, *given[2], style));
  }
  QUAROT_ASSIGN_OR_RETURN(std::string json, to_json(arena, self, style));
  return Value(arena.text(std::move(json)));
}

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable kFilters = {
      {"upper", mapped<upper>},
      {"lower", mapped<lower>},
      {"capitalize", mapped<capitalize>},
      {"title", mapped<title_words>},
      {"escape", mapped<escape>},
      {"e", mapped<escape>},
      {"forceescape", mapped<escape>},
      {"string", string_filter},
      {"safe", string_filter},
      {"trim", trim},
      {"replace", replace_filter},
      {"default", default_filter},
      {"d", default_filter},
      {"indent", indent},
      {"int", int_filter},
      {"float", float_filter},
      {"abs", abs_filter},
      {"round", round_filter},
      {"tojson", to_json_filter},
  };
  return kFilters;
}

Builtin find_filter(std::string_view name) {
  for (const FilterTable* table : {&text_filters(), &collection_filters()}) {
    if (const auto found = table->find(name); found != table->end()) return found->second;
  }
  return nullptr;
}

}  // namespace quarot::jinja
