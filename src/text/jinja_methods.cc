// Methods of str, dict, list and loop: those that change nothing.
// https://docs.python.org/3/library/stdtypes.html#string-methods
#include <algorithm>
#include <optional>
#include <unordered_map>

#include "text/jinja_arguments.h"
#include "text/jinja_callable.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"
#include "text/jinja_string.h"
#include "text/jinja_text.h"

namespace quarot::jinja {

namespace {

std::string_view text_of(const Value& self) { return *get<std::string_view>(self); }

template <Side side>
Result<Value> strip_method(Interpreter&, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"chars"}));
  if (given[0] == nullptr || is<None>(*given[0])) return Value(strip(text_of(self), side));
  QUAROT_ASSIGN_OR_RETURN(const std::string_view set, text_argument(given[0]));
  return Value(strip(text_of(self), side, &set));
}

template <std::string (*map)(std::string_view)>
Result<Value> mapped(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN([[maybe_unused]] const auto none, bind<0>(arguments, {}));
  return Value(interpreter.arena().text(map(text_of(self))));
}

// str.isalpha and its like: not empty, and every character passes.
template <bool (*passes)(std::string_view)>
Result<Value> all_pass(Interpreter&, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN([[maybe_unused]] const auto none, bind<0>(arguments, {}));
  const std::vector<std::string_view> all = characters(text_of(self));
  return Value(!all.empty() && std::all_of(all.begin(), all.end(), passes));
}

bool is_letter_or_digit(std::string_view character) {
  return is_letter(character) || is_digit(character);
}

template <bool upper_case>
Result<Value> has_case(Interpreter&, const Value& self, const Arguments&) {
  const std::string_view text = text_of(self);
  const std::string same = upper_case ? upper(text) : lower(text);
  const std::string other = upper_case ? lower(text) : upper(text);
  return Value(same == text && other != text);
}

template <bool from_right>
Result<Value> split_method(Interpreter& interpreter, const Value& self,
                           const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<2>(arguments, {"sep", "maxsplit"}));
  QUAROT_ASSIGN_OR_RETURN(const int64_t limit, integer_argument(given[1], -1));
  const bool by_space = given[0] == nullptr || is<None>(*given[0]);
  QUAROT_ASSIGN_OR_RETURN(const std::string_view separator,
                          text_argument(by_space ? nullptr : given[0]));
  if (!by_space && separator.empty()) {
    return Error(ErrorCode::kInvalidArgument, "split needs a separator that is not empty");
  }
  const Splitter splitter{by_space ? nullptr : &separator, limit};
  const std::vector<std::string_view> parts =
      from_right ? splitter.from_right(text_of(self)) : splitter.from_left(text_of(self));
  return interpreter.arena().list(std::vector<Value>(parts.begin(), parts.end()));
}

Result<Value> split_lines_method(Interpreter& interpreter, const Value& self,
                                 const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"keepends"}));
  const auto lines = split_lines(text_of(self), flag_argument(given[0]));
  return interpreter.arena().list(std::vector<Value>(lines.begin(), lines.end()));
}

template <bool (*matches)(std::string_view, std::string_view)>
Result<Value> affix_method(Interpreter&, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"affix"}, 1));
  std::vector<Value> candidates = {*given[0]};
  const auto* several = get<const Sequence*>(*given[0]);
  if (several != nullptr && (*several)->kind == Sequence::Kind::kTuple) {
    candidates = (*several)->items;
  }
  for (const Value& candidate : candidates) {
    QUAROT_ASSIGN_OR_RETURN(const std::string_view affix, text_argument(&candidate));
    if (matches(text_of(self), affix)) return Value(true);
  }
  return Value(false);
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix);
}
bool ends_with(std::string_view text, std::string_view suffix) { return text.ends_with(suffix); }

template <bool prefix>
Result<Value> remove_affix(Interpreter&, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"affix"}, 1));
  QUAROT_ASSIGN_OR_RETURN(const std::string_view affix, text_argument(given[0]));
  std::string_view text = text_of(self);
  if (prefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!prefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return Value(text);
}

Result<Value> replace_method(Interpreter& interpreter, const Value& self,
                             const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<3>(arguments, {"old", "new", "count"}, 2));
  QUAROT_ASSIGN_OR_RETURN(const std::string_view from, text_argument(given[0]));
  QUAROT_ASSIGN_OR_RETURN(const std::string_view to, text_argument(given[1]));
  QUAROT_ASSIGN_OR_RETURN(const int64_t count, integer_argument(given[2], -1));
  return Value(replace(interpreter.arena(), text_of(self), from, to, count));
}

Result<Value> join_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"iterable"}, 1));
  Arena& arena = interpreter.arena();
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(arena, *given[0]));
  for (const Value& one : items) {
    QUAROT_ASSIGN_OR_RETURN([[maybe_unused]] const std::string_view text, text_argument(&one));
  }
  return Value(join(arena, items, text_of(self)));
}

template <bool last, bool must>
Result<Value> find_method_of_text(Interpreter&, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"sub"}, 1));
  QUAROT_ASSIGN_OR_RETURN(const std::string_view part, text_argument(given[0]));
  const std::string_view text = text_of(self);
  const size_t found = last ? text.rfind(part) : text.find(part);
  if (found != std::string_view::npos) return Value(character_count(text.substr(0, found)));
  if (must) return Error(ErrorCode::kInvalidArgument, "substring not found");
  return Value(int64_t{-1});
}

Result<Value> count_in_text(Interpreter&, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"sub"}, 1));
  QUAROT_ASSIGN_OR_RETURN(const std::string_view part, text_argument(given[0]));
  const std::string_view text = text_of(self);
  if (part.empty()) return Value(character_count(text) + 1);
  const Splitter splitter{&part, -1};
  return Value(static_cast<int64_t>(splitter.from_left(text).size()) - 1);
}

Result<Value> count_in_list(Interpreter& interpreter, const Value& self,
                            const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"value"}, 1));
  const auto& items = (*get<const Sequence*>(self))->items;
  return Value(static_cast<int64_t>(std::count_if(items.begin(), items.end(), [&](const Value& v) {
    return equal(interpreter.arena(), v, *given[0]);
  })));
}

Result<Value> index_in_list(Interpreter& interpreter, const Value& self,
                            const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"value"}, 1));
  const auto& items = (*get<const Sequence*>(self))->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(interpreter.arena(), items[i], *given[0])) return Value(static_cast<int64_t>(i));
  }
  return Error(ErrorCode::kInvalidArgument, "the list has no such value");
}

template <Sequence::Kind kind>
Result<Value> view(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN([[maybe_unused]] const auto none, bind<0>(arguments, {}));
  return dict_view(interpreter.arena(), **get<const Dict*>(self), kind);
}

Result<Value> dict_get(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<2>(arguments, {"key", "default"}, 1));
  const Dict& dict = **get<const Dict*>(self);
  if (const Value* value = find(interpreter.arena(), dict, *given[0])) return *value;
  return given[1] != nullptr ? *given[1] : Value(None{});
}

Result<Value> copy(Interpreter&, const Value& self, const Arguments&) {
  return self;  // nothing can tell a copy from what cannot change
}

Result<Value> cycle(Interpreter&, const Value& self, const Arguments& arguments) {
  const auto& values = arguments.positional;
  if (values.empty()) return Error(ErrorCode::kInvalidArgument, "no items for cycling given");
  return values[(*get<const Loop*>(self))->index % values.size()];
}

using Methods = std::unordered_map<std::string_view, Builtin>;

const Methods* methods_of(const Value& self) {
  static const Methods kText = {
      {"strip", strip_method<Side::kBoth>},
      {"lstrip", strip_method<Side::kLeft>},
      {"rstrip", strip_method<Side::kRight>},
      {"upper", mapped<upper>},
      {"lower", mapped<lower>},
      {"title", mapped<title>},
      {"capitalize", mapped<capitalize>},
      {"isspace", all_pass<is_space>},
      {"isalpha", all_pass<is_letter>},
      {"isdigit", all_pass<is_digit>},
      {"isalnum", all_pass<is_letter_or_digit>},
      {"isupper", has_case<true>},
      {"islower", has_case<false>},
      {"split", split_method<false>},
      {"rsplit", split_method<true>},
      {"splitlines", split_lines_method},
      {"startswith", affix_method<starts_with>},
      {"endswith", affix_method<ends_with>},
      {"removeprefix", remove_affix<true>},
      {"removesuffix", remove_affix<false>},
      {"replace", replace_method},
      {"join", join_method},
      {"find", find_method_of_text<false, false>},
      {"rfind", find_method_of_text<true, false>},
      {"index", find_method_of_text<false, true>},
      {"rindex", find_method_of_text<true, true>},
      {"count", count_in_text},
  };
  static const Methods kDict = {{"keys", view<Sequence::Kind::kKeys>},
                                {"values", view<Sequence::Kind::kValues>},
                                {"items", view<Sequence::Kind::kItems>},
                                {"get", dict_get},
                                {"copy", copy}};
  static const Methods kSequence = {
      {"count", count_in_list}, {"index", index_in_list}, {"copy", copy}};
  static const Methods kLoop = {{"cycle", cycle}};
  if (is<std::string_view>(self)) return &kText;
  if (is<const Dict*>(self)) return &kDict;
  if (is<const Loop*>(self)) return &kLoop;
  const auto* sequence = get<const Sequence*>(self);
  return sequence != nullptr && (*sequence)->indexable() ? &kSequence : nullptr;
}

}  // namespace

Builtin find_method(const Value& self, std::string_view name) {
  const Methods* methods = methods_of(self);
  if (methods == nullptr) return nullptr;
  const auto found = methods->find(name);
  return found == methods->end() ? nullptr : found->second;
}

}  // namespace quarot::jinja
