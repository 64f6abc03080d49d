// Filters of lists and mappings. Where Jinja gives a generator, these give a stream: always true,
// without length or index.
// https://jinja.palletsprojects.com/en/stable/templates/#builtin-filters
#include <algorithm>
#include <charconv>

#include "text/jinja_arguments.h"
#include "text/jinja_filters.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"
#include "text/jinja_string.h"
#include "text/jinja_text.h"

namespace quarot::jinja {

namespace {

Value stream(Arena& arena, std::vector<Value> items) {
  return arena.sequence(Sequence::Kind::kStream, std::move(items));
}

// "a.b.0" of a value: items, then attributes, level by level. Not given: the value itself.
Result<Value> value_at(Arena& arena, const Value& value, const Value* path) {
  if (path == nullptr || is<None>(*path)) return value;
  if (is<int64_t>(*path)) return item(arena, value, *path);
  QUAROT_ASSIGN_OR_RETURN(const std::string_view text, text_argument(path));
  const std::string_view dot = ".";
  const Splitter splitter{&dot, -1};
  Value found = value;
  for (const std::string_view name : splitter.from_left(text)) {
    int64_t index = 0;
    const char* last = name.data() + name.size();
    const auto [end, code] = std::from_chars(name.data(), last, index);
    const bool numeric = code == std::errc() && end == last && index >= 0;
    QUAROT_ASSIGN_OR_RETURN(found, item(arena, found, numeric ? Value(index) : Value(name)));
  }
  return found;
}

// What strings are compared by where case does not matter.
Value fold_case(Arena& arena, const Value& value) {
  const auto* text = get<std::string_view>(value);
  return text == nullptr ? value : Value(arena.text(lower(*text)));
}

Result<std::vector<Value>> keys_of(Arena& arena, const std::vector<Value>& items, const Value* path,
                                   bool case_sensitive) {
  std::vector<Value> keys;
  for (const Value& one : items) {
    QUAROT_ASSIGN_OR_RETURN(const Value key, value_at(arena, one, path));
    keys.push_back(case_sensitive ? key : fold_case(arena, key));
  }
  return keys;
}

// The order of `keys`, stable; the error of the first two that cannot be compared.
Result<std::vector<size_t>> sorted_order(Arena& arena, const std::vector<Value>& keys,
                                         bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Status failed;
  // A merge sort that a failing comparison cannot upset, unlike an unordered std::sort.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!failed.ok() || arena.overdrawn()) return false;
    const Result<bool> below =
        reverse ? less(arena, keys[b], keys[a]) : less(arena, keys[a], keys[b]);
    if (!below.ok()) failed = below.error();
    return below.ok() && *below;
  });
  QUAROT_RETURN_IF_ERROR(failed);
  return order;
}

Result<Value> sort(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given,
                          bind<3>(arguments, {"reverse", "case_sensitive", "attribute"}));
  Arena& arena = interpreter.arena();
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(arena, self));
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                          keys_of(arena, items, given[2], flag_argument(given[1])));
  QUAROT_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                          sorted_order(arena, keys, flag_argument(given[0])));
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return arena.list(std::move(sorted));
}

Result<Value> dict_sort(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given,
                          bind<3>(arguments, {"case_sensitive", "by", "reverse"}));
  QUAROT_ASSIGN_OR_RETURN(const std::string_view by, text_argument(given[1], "key"));
  const auto* dict = get<const Dict*>(self);
  if (dict == nullptr) {
    return error(ErrorCode::kInvalidArgument, "needs a dict, got {}", type_name(self));
  }
  if (by != "key" && by != "value") {
    return error(ErrorCode::kInvalidArgument, "by='key' or by='value' expected, got '{}'", by);
  }
  Arena& arena = interpreter.arena();
  const Value pairs = dict_view(arena, **dict, Sequence::Kind::kItems);
  const Value path = int64_t{by == "key" ? 0 : 1};
  const std::vector<Value>& items = (*get<const Sequence*>(pairs))->items;
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                          keys_of(arena, items, &path, flag_argument(given[0])));
  QUAROT_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                          sorted_order(arena, keys, flag_argument(given[2])));
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return arena.list(std::move(sorted));
}

Result<Value> unique(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<2>(arguments, {"case_sensitive", "attribute"}));
  Arena& arena = interpreter.arena();
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(arena, self));
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                          keys_of(arena, items, given[1], flag_argument(given[0])));
  std::vector<Value> seen;
  std::vector<Value> kept;
  for (size_t i = 0; i < items.size() && !arena.overdrawn(); ++i) {
    const bool again = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      return equal(arena, other, keys[i]) || arena.overdrawn();
    });
    if (again) continue;
    seen.push_back(keys[i]);
    kept.push_back(items[i]);
  }
  return stream(arena, std::move(kept));
}

template <bool largest>
Result<Value> extreme(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<2>(arguments, {"case_sensitive", "attribute"}));
  Arena& arena = interpreter.arena();
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(arena, self));
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                          keys_of(arena, items, given[1], flag_argument(given[0])));
  if (items.empty()) return Value(Undefined{"an item of an empty sequence"});
  size_t best = 0;
  for (size_t i = 1; i < keys.size(); ++i) {
    QUAROT_ASSIGN_OR_RETURN(const bool better, largest ? less(arena, keys[best], keys[i])
                                                       : less(arena, keys[i], keys[best]));
    if (better) best = i;
  }
  return items[best];
}

Result<Value> sum(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<2>(arguments, {"attribute", "start"}));
  Arena& arena = interpreter.arena();
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(arena, self));
  Value total = given[1] != nullptr ? *given[1] : Value(int64_t{0});
  for (const Value& one : items) {
    QUAROT_ASSIGN_OR_RETURN(const Value term, value_at(arena, one, given[0]));
    QUAROT_ASSIGN_OR_RETURN(total, apply_binary(arena, BinaryOperator::kAdd, total, term));
    if (arena.overdrawn()) break;
  }
  return total;
}

Result<Value> join_filter(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<2>(arguments, {"d", "attribute"}));
  Arena& arena = interpreter.arena();
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(arena, self));
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> texts, keys_of(arena, items, given[1], true));
  const std::string_view separator = given[0] != nullptr ? str(arena, *given[0]) : "";
  return Value(join(arena, texts, separator));
}

template <bool last>
Result<Value> end_item(Interpreter& interpreter, const Value& self, const Arguments&) {
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(interpreter.arena(), self));
  if (items.empty()) return Value(Undefined{"an item of an empty sequence"});
  return last ? items.back() : items.front();
}

Result<Value> length_filter(Interpreter& interpreter, const Value& self, const Arguments&) {
  QUAROT_ASSIGN_OR_RETURN(const int64_t count, length(interpreter.arena(), self));
  return Value(count);
}

Result<Value> list_filter(Interpreter& interpreter, const Value& self, const Arguments&) {
  QUAROT_ASSIGN_OR_RETURN(std::vector<Value> items, iterate(interpreter.arena(), self));
  return interpreter.arena().list(std::move(items));
}

Result<Value> items_filter(Interpreter& interpreter, const Value& self, const Arguments&) {
  Arena& arena = interpreter.arena();
  if (is<Undefined>(self)) return stream(arena, {});
  if (const auto* dict = get<const Dict*>(self))
    return dict_view(arena, **dict, Sequence::Kind::kItems);
  return error(ErrorCode::kInvalidArgument, "needs a dict, got {}", type_name(self));
}

Result<Value> reverse(Interpreter& interpreter, const Value& self, const Arguments&) {
  Arena& arena = interpreter.arena();
  QUAROT_ASSIGN_OR_RETURN(std::vector<Value> items, iterate(arena, self));
  std::reverse(items.begin(), items.end());
  if (is<std::string_view>(self)) return Value(join(arena, items, ""));
  return stream(arena, std::move(items));
}

// map(attribute=…, default=…), or map('filter', its arguments…).
Result<Value> map(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  Arena& arena = interpreter.arena();
  QUAROT_ASSIGN_OR_RETURN(std::vector<Value> items, iterate(arena, self));
  if (arguments.positional.empty()) {
    QUAROT_ASSIGN_OR_RETURN(const auto given, bind<2>(arguments, {"attribute", "default"}));
    for (Value& one : items) {
      QUAROT_ASSIGN_OR_RETURN(one, value_at(arena, one, given[0]));
      if (is<Undefined>(one) && given[1] != nullptr) one = *given[1];
    }
    return stream(arena, std::move(items));
  }
  QUAROT_ASSIGN_OR_RETURN(const std::string_view name, text_argument(arguments.positional.data()));
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()},
                       arguments.named};
  for (Value& one : items) {
    if (!arena.spend(Arena::kNodeCost)) break;
    QUAROT_ASSIGN_OR_RETURN(one, interpreter.apply_filter(name, one, rest));
  }
  return stream(arena, std::move(items));
}

// select and reject: by a test, else by truth; with an attribute first, by that attribute.
template <bool keep, bool by_attribute>
Result<Value> filter_items(Interpreter& interpreter, const Value& self,
                           const Arguments& arguments) {
  Arena& arena = interpreter.arena();
  const std::vector<Value>& given = arguments.positional;
  const size_t test = by_attribute ? 1 : 0;
  if (given.size() < test) return Error(ErrorCode::kInvalidArgument, "needs an attribute");
  Arguments rest;
  rest.named = arguments.named;
  std::string_view name;
  if (given.size() > test) {
    QUAROT_ASSIGN_OR_RETURN(name, text_argument(&given[test]));
    rest.positional.assign(given.begin() + static_cast<std::ptrdiff_t>(test) + 1, given.end());
  }
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(arena, self));
  std::vector<Value> kept;
  for (const Value& one : items) {
    if (!arena.spend(Arena::kNodeCost)) break;
    QUAROT_ASSIGN_OR_RETURN(const Value value,
                            value_at(arena, one, by_attribute ? given.data() : nullptr));
    bool holds = truthy(value);
    if (!name.empty()) {
      QUAROT_ASSIGN_OR_RETURN(holds, interpreter.apply_test(name, value, rest));
    }
    if (holds == keep) kept.push_back(one);
  }
  return stream(arena, std::move(kept));
}

Result<Value> attr(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  QUAROT_ASSIGN_OR_RETURN(const auto given, bind<1>(arguments, {"name"}, 1));
  QUAROT_ASSIGN_OR_RETURN(const std::string_view name, text_argument(given[0]));
  if (is<const Dict*>(self) && find_method(self, name) == nullptr) return Value(Undefined{name});
  return attribute(interpreter.arena(), self, name);
}

}  // namespace

const FilterTable& collection_filters() {
  static const FilterTable kFilters = {
      {"sort", sort},
      {"dictsort", dict_sort},
      {"unique", unique},
      {"max", extreme<true>},
      {"min", extreme<false>},
      {"sum", sum},
      {"join", join_filter},
      {"first", end_item<false>},
      {"last", end_item<true>},
      {"length", length_filter},
      {"count", length_filter},
      {"list", list_filter},
      {"items", items_filter},
      {"reverse", reverse},
      {"map", map},
      {"select", filter_items<true, false>},
      {"reject", filter_items<false, false>},
      {"selectattr", filter_items<true, true>},
      {"rejectattr", filter_items<false, true>},
      {"attr", attr},
  };
  return kFilters;
}

}  // namespace quarot::jinja
