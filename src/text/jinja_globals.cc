// Functions every template sees, as transformers sets them up.
#include <cstdio>
#include <ctime>
#include <unordered_map>

#include "base/error.h"
#include "text/jinja_callable.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"

namespace quarot::jinja {

namespace {

constexpr int64_t kMaxRange = 100000;  // Jinja2's sandbox has the same

Result<Value> raise_exception(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"message"}, 1));
  return Error(ErrorCode::kInvalidArgument, std::string(str(interpreter.arena(), *given[0])));
}

// The `date` variable, "2024-07-26", makes a prompt reproducible; without it the date is today's.
Result<std::tm> now(Interpreter& interpreter) {
  std::tm time{};
  const Value given = interpreter.variable("date");
  if (const auto* text = get<std::string_view>(given)) {
    int end = 0;
    const std::string date(*text);
    const int read =
        std::sscanf(date.c_str(), "%4d-%2d-%2d%n", &time.tm_year, &time.tm_mon,  // NOLINT
                    &time.tm_mday, &end);
    if (read != 3 || static_cast<size_t>(end) != date.size()) {
      return error(ErrorCode::kInvalidArgument, "the variable date is '{}', YYYY-MM-DD expected",
                   date);
    }
    time.tm_year -= 1900;
    time.tm_mon -= 1;
    time.tm_isdst = -1;
    std::mktime(&time);  // fills in the day of the week
    return time;
  }
  const std::time_t seconds = std::time(nullptr);
  localtime_r(&seconds, &time);
  return time;
}

Result<Value> strftime_now(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"format"}, 1));
  QUAROT_ASSIGN_OR_RETURN(const std::tm time, now(interpreter));
  const std::string format(str(interpreter.arena(), *given[0]));
  char text[1024];
  const size_t size = std::strftime(text, sizeof(text), format.c_str(), &time);
  if (size == 0 && !format.empty()) {
    return error(ErrorCode::kInvalidArgument, "strftime_now cannot format '{}'", format);
  }
  return Value(interpreter.arena().text(std::string(text, size)));
}

Result<Value> range(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  int64_t numbers[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty()) {
    return error(ErrorCode::kInvalidArgument, "range takes 1 to 3 arguments, got {}", count);
  }
  for (size_t i = 0; i < count; ++i) {
    int64_t storage = 0;
    const int64_t* whole = integer(arguments.positional[i], storage);
    if (whole == nullptr) {
      return error(ErrorCode::kInvalidArgument, "range needs int, got {}",
                   type_name(arguments.positional[i]));
    }
    numbers[count == 1 ? 1 : i] = *whole;
  }
  const auto [start, stop, step] = numbers;
  if (step == 0) return error(ErrorCode::kInvalidArgument, "range cannot step by 0");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    items.emplace_back(i);
    if (static_cast<int64_t>(items.size()) > kMaxRange) {
      return error(ErrorCode::kUnsupported, "range is longer than {}", kMaxRange);
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return interpreter.arena().sequence(Sequence::Kind::kRange, std::move(items));
}

// dict(mapping or pairs, name=value, …)
Result<const Dict*> make_dict(Interpreter& interpreter, const Arguments& arguments) {
  Arena& arena = interpreter.arena();
  Dict* dict = arena.make<Dict>();
  if (arguments.positional.size() > 1) {
    return error(ErrorCode::kInvalidArgument, "at most one argument by position expected, got {}",
                 arguments.positional.size());
  }
  for (const Value& source : arguments.positional) {
    if (const auto* other = get<const Dict*>(source)) {
      arena.spend((*other)->items.size() * 2 * sizeof(Value));
      *dict = **other;
      continue;
    }
    QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(arena, source));
    for (const Value& one : items) {
      QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> pair, iterate(arena, one));
      if (pair.size() != 2) return error(ErrorCode::kInvalidArgument, "pairs expected");
      insert(arena, *dict, pair[0], pair[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) insert(arena, *dict, name, value);
  return static_cast<const Dict*>(dict);
}

Result<Value> dict_function(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const Dict* dict, make_dict(interpreter, arguments));
  return Value(dict);
}

Result<Value> namespace_function(Interpreter& interpreter, const Value&,
                                 const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const Dict* dict, make_dict(interpreter, arguments));
  auto* names = interpreter.arena().make<Namespace>();
  for (const auto& [key, value] : dict->items) {
    interpreter.arena().spend(sizeof(Value) + sizeof(std::string_view));
    names->attributes.emplace_back(str(interpreter.arena(), key), value);
  }
  return Value(names);
}

}  // namespace

Builtin find_global(std::string_view name) {
  static const std::unordered_map<std::string_view, Builtin> kGlobals = {
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now},
      {"range", range},
      {"dict", dict_function},
      {"namespace", namespace_function},
  };
  const auto found = kGlobals.find(name);
  return found == kGlobals.end() ? nullptr : found->second;
}

}  // namespace quarot::jinja
