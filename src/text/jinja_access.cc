// Attributes, items and slices.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "text/jinja_callable.h"
#include "text/jinja_operators.h"
#include "text/jinja_text.h"

namespace quarot::jinja {

namespace {

Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto count = static_cast<int64_t>(loop.items->size());
  const auto index = static_cast<int64_t>(loop.index);
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return count - index;
  if (name == "revindex0") return count - index - 1;
  if (name == "length") return count;
  if (name == "first") return index == 0;
  if (name == "last") return index == count - 1;
  if (name == "depth") return int64_t{1};
  if (name == "depth0") return int64_t{0};
  if (name == "previtem" && index > 0) return (*loop.items)[loop.index - 1];
  if (name == "nextitem" && index + 1 < count) return (*loop.items)[loop.index + 1];
  return Undefined{name};
}

// What stands behind a dot and is no item: methods, and what loops and namespaces hold.
std::optional<Value> member(Arena& arena, const Value& object, std::string_view name) {
  if (const Builtin method = find_method(object, name)) {
    return static_cast<const Callable*>(arena.make<Callable>({method, object, nullptr, nullptr}));
  }
  if (const auto* loop = get<const Loop*>(object)) return loop_attribute(**loop, name);
  if (const auto* names = get<Namespace*>(object)) {
    arena.spend((*names)->attributes.size());
    for (const auto& [attribute, value] : (*names)->attributes) {
      if (attribute == name) return value;
    }
  }
  return std::nullopt;
}

// The character at `index`, which may count from the end; empty where there is none.
std::string_view character_at(std::string_view text, int64_t index) {
  if (index < 0) index += character_count(text);
  if (index < 0) return {};
  for (; index > 0 && !text.empty(); --index) take_character(text);
  return text.empty() ? text : take_character(text);
}

struct Range {
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 0;
};

Result<std::optional<int64_t>> slice_part(const Value& value) {
  if (is<None>(value)) return std::optional<int64_t>();
  int64_t storage = 0;
  if (const int64_t* whole = integer(value, storage)) return std::optional<int64_t>(*whole);
  if (const auto* missing = get<Undefined>(value)) return undefined_error(*missing);
  return error(ErrorCode::kInvalidArgument, "a slice needs int, got {}", type_name(value));
}

// https://docs.python.org/3/reference/expressions.html#slicings
Result<Range> slice_range(int64_t length, const Value& start, const Value& stop,
                          const Value& step) {
  QUAROT_ASSIGN_OR_RETURN(const std::optional<int64_t> first, slice_part(start));
  QUAROT_ASSIGN_OR_RETURN(const std::optional<int64_t> last, slice_part(stop));
  QUAROT_ASSIGN_OR_RETURN(const std::optional<int64_t> stride, slice_part(step));
  Range range;
  // A stride beyond the length takes one element, whatever it is; this keeps sums in range.
  range.step = std::clamp<int64_t>(stride.value_or(1), -length - 1, length + 1);
  if (stride == 0) return Error(ErrorCode::kInvalidArgument, "a slice cannot step by 0");
  const bool backwards = range.step < 0;
  const int64_t low = backwards ? -1 : 0;
  const int64_t high = backwards ? length - 1 : length;
  const auto bound = [&](std::optional<int64_t> value, int64_t otherwise) {
    if (!value) return otherwise;
    return std::clamp(*value < 0 ? *value + length : *value, low, high);
  };
  range.start = bound(first, backwards ? high : low);
  const int64_t end = bound(last, backwards ? low : high);
  const int64_t span = backwards ? range.start - end : end - range.start;
  const int64_t stride_size = backwards ? -range.step : range.step;
  if (span > 0) range.count = (span + stride_size - 1) / stride_size;
  return range;
}

Result<Value> slice_text(Arena& arena, std::string_view text, const Value& start, const Value& stop,
                         const Value& step) {
  const std::vector<std::string_view> all = characters(text);
  arena.spend(text.size() * sizeof(std::string_view));
  QUAROT_ASSIGN_OR_RETURN(const Range range,
                          slice_range(static_cast<int64_t>(all.size()), start, stop, step));
  std::string part;
  for (int64_t i = 0; i < range.count; ++i) part += all[range.start + i * range.step];
  return Value(arena.text(std::move(part)));
}

}  // namespace

Result<Value> attribute(Arena& arena, const Value& object, std::string_view name) {
  if (const auto* missing = get<Undefined>(object)) return undefined_error(*missing);
  if (const std::optional<Value> value = member(arena, object, name)) return *value;
  if (const auto* dict = get<const Dict*>(object)) {
    if (const Value* value = find(arena, **dict, name)) return *value;
  }
  return Value(Undefined{name});
}

Result<Value> item(Arena& arena, const Value& object, const Value& key) {
  if (const auto* missing = get<Undefined>(object)) return undefined_error(*missing);
  if (const auto* dict = get<const Dict*>(object)) {
    if (const Value* value = find(arena, **dict, key)) return *value;
  }
  const auto* name = get<std::string_view>(key);
  if (name != nullptr) {
    if (const std::optional<Value> value = member(arena, object, *name)) return *value;
    return Value(Undefined{*name});
  }
  int64_t storage = 0;
  const int64_t* index = integer(key, storage);
  const auto* sequence = get<const Sequence*>(object);
  if (index != nullptr && sequence != nullptr && (*sequence)->indexable()) {
    const std::vector<Value>& items = (*sequence)->items;
    const int64_t at = *index < 0 ? *index + static_cast<int64_t>(items.size()) : *index;
    if (at >= 0 && at < static_cast<int64_t>(items.size())) return items[at];
  }
  if (const auto* text = get<std::string_view>(object); text != nullptr && index != nullptr) {
    arena.spend(text->size());
    const std::string_view character = character_at(*text, *index);
    if (!character.empty()) return Value(character);
  }
  return Value(Undefined{str(arena, key)});
}

Result<Value> slice(Arena& arena, const Value& object, const Value& start, const Value& stop,
                    const Value& step) {
  if (const auto* missing = get<Undefined>(object)) return undefined_error(*missing);
  if (const auto* text = get<std::string_view>(object)) {
    return slice_text(arena, *text, start, stop, step);
  }
  const auto* sequence = get<const Sequence*>(object);
  if (sequence == nullptr || !(*sequence)->indexable()) return Value(Undefined{"slice"});
  const std::vector<Value>& items = (*sequence)->items;
  QUAROT_ASSIGN_OR_RETURN(const Range range,
                          slice_range(static_cast<int64_t>(items.size()), start, stop, step));
  std::vector<Value> part;
  for (int64_t i = 0; i < range.count; ++i) part.push_back(items[range.start + i * range.step]);
  return arena.sequence((*sequence)->kind, std::move(part));
}

}  // namespace quarot::jinja
