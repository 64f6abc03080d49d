// What a template computes with: Python's values as Jinja2's immutable sandbox lets a template see
// them. Nothing but a namespace can change after it is made, so strings and containers are shared
// freely, and everything made while rendering lives in one arena until the end: no cycle can leak.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace quarot::jinja {

struct Sequence;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

struct Undefined {
  std::string_view name;  // what was looked up in vain, for the error message
};
struct None {};

using Value = std::variant<Undefined, None, bool, int64_t, double, std::string_view,
                           const Sequence*, const Dict*, Namespace*, const Loop*, const Callable*>;

struct Sequence {
  // Lists and tuples are Python's. What dict.keys(), values() and items() give has a length but no
  // index. A stream is what map() or select() gives: always true, no length, no index.
  enum class Kind { kList, kTuple, kRange, kKeys, kValues, kItems, kStream };
  Kind kind = Kind::kList;
  std::vector<Value> items;

  bool indexable() const { return kind <= Kind::kRange; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in the order of insertion
};

struct Namespace {
  std::vector<std::pair<std::string_view, Value>> attributes;
};

// The `loop` variable of a for statement.
struct Loop {
  const std::vector<Value>* items = nullptr;
  size_t index = 0;
};

// The names of one block of the template, seen from inside it.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> names;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

// Owns what rendering makes, and counts it. The budget bounds memory and time alike: a byte
// allocated or looked at costs 1, a value compared or printed kValueCost, a node evaluated
// kNodeCost. An overdrawn arena stays overdrawn: whoever finds it so stops early with any value,
// and the evaluator, which asks after every node, reports it.
class Arena {
 public:
  static constexpr size_t kBudget = size_t{128} << 20;
  static constexpr size_t kNodeCost = 64;
  static constexpr size_t kValueCost = 16;
  static constexpr int kMaxDepth = 200;  // of values inside values

  // False once the budget is gone.
  bool spend(size_t cost);
  // True where `count` times `size` bytes can still be had; else the arena is overdrawn.
  bool affords(size_t count, size_t size);
  void overdraw(std::string_view reason);
  bool overdrawn() const { return !reason_.empty(); }
  std::string_view reason() const { return reason_; }

  template <typename T>
  T* make(T value = {}) {
    spend(sizeof(T));
    return &std::get<std::deque<T>>(pools_).emplace_back(std::move(value));
  }
  std::string_view text(std::string text);
  Value sequence(Sequence::Kind kind, std::vector<Value> items);
  Value list(std::vector<Value> items) { return sequence(Sequence::Kind::kList, std::move(items)); }

 private:
  size_t left_ = kBudget;
  std::string_view reason_;
  std::tuple<std::deque<std::string>, std::deque<Sequence>, std::deque<Dict>, std::deque<Namespace>,
             std::deque<Loop>, std::deque<Callable>, std::deque<Scope>>
      pools_;
};

template <typename T>
const T* get(const Value& value) {
  return std::get_if<T>(&value);
}
template <typename T>
bool is(const Value& value) {
  return std::holds_alternative<T>(value);
}

std::string_view type_name(const Value& value);  // Python's: "int", "str", "NoneType", …
bool truthy(const Value& value);
// An int or a bool, as Python's int.
const int64_t* integer(const Value& value, int64_t& storage);
bool number(const Value& value, double& as_double);

bool equal(Arena& arena, const Value& left, const Value& right, int depth = 0);
// The value of `key`, or null.
const Value* find(Arena& arena, const Dict& dict, const Value& key);
// Adds or replaces.
void insert(Arena& arena, Dict& dict, const Value& key, const Value& value);

// str(): what {{ }} prints. Of a string the string itself.
std::string_view str(Arena& arena, const Value& value);
// Appends str() or repr() to `out`.
void append_str(Arena& arena, std::string& out, const Value& value);
void append_repr(Arena& arena, std::string& out, const Value& value, int depth = 0);
std::string float_repr(double value);

}  // namespace quarot::jinja
