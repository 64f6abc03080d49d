#include "text/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja_callable.h"
#include "text/jinja_text.h"

namespace quarot::jinja {

bool Arena::spend(size_t cost) {
  if (overdrawn()) return false;
  if (cost > left_) {
    overdraw("the template does too much: it loops too long or builds too large a value");
    return false;
  }
  left_ -= cost;
  return true;
}

bool Arena::affords(size_t count, size_t size) {
  if (size != 0 && count > left_ / size) return spend(kBudget + 1);
  return !overdrawn();
}

void Arena::overdraw(std::string_view reason) {
  if (reason_.empty()) reason_ = reason;
}

std::string_view Arena::text(std::string text) {
  spend(text.size());
  return *make<std::string>(std::move(text));
}

Value Arena::sequence(Sequence::Kind kind, std::vector<Value> items) {
  spend(items.size() * sizeof(Value));
  return static_cast<const Sequence*>(make<Sequence>({kind, std::move(items)}));
}

namespace {

std::string_view sequence_name(Sequence::Kind kind) {
  switch (kind) {
    case Sequence::Kind::kList:
      return "list";
    case Sequence::Kind::kTuple:
      return "tuple";
    case Sequence::Kind::kRange:
      return "range";
    case Sequence::Kind::kKeys:
      return "dict_keys";
    case Sequence::Kind::kValues:
      return "dict_values";
    case Sequence::Kind::kItems:
      return "dict_items";
    case Sequence::Kind::kStream:
      break;
  }
  return "generator";
}

// Python's choice: single quotes unless the text holds those and no double ones.
void append_quoted(std::string& out, std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  while (!text.empty()) {
    const std::string_view character = take_character(text);
    const char byte = character.front();
    if (byte == quote || byte == '\\') {
      out += '\\';
      out += byte;
    } else if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte == '\t') {
      out += "\\t";
    } else if ((byte >= 0 && byte < ' ') || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<int>(byte));
    } else if (code_point(character) >= 0x80 && code_point(character) <= 0xA0) {
      out += fmt::format("\\x{:02x}", code_point(character));
    } else {
      out += character;
    }
  }
  out += quote;
}

void append_items(Arena& arena, std::string& out, const std::vector<Value>& items, int depth) {
  for (size_t i = 0; i < items.size() && !arena.overdrawn(); ++i) {
    if (i > 0) out += ", ";
    append_repr(arena, out, items[i], depth);
  }
}

void append_sequence(Arena& arena, std::string& out, const Sequence& sequence, int depth) {
  const bool tuple = sequence.kind == Sequence::Kind::kTuple;
  if (!tuple && sequence.kind != Sequence::Kind::kList) {
    out += sequence_name(sequence.kind);
    out += '(';
  }
  out += tuple ? '(' : '[';
  append_items(arena, out, sequence.items, depth);
  if (tuple && sequence.items.size() == 1) out += ',';
  out += tuple ? ')' : ']';
  if (!tuple && sequence.kind != Sequence::Kind::kList) out += ')';
}

void append_dict(Arena& arena, std::string& out, const Dict& dict, int depth) {
  out += '{';
  for (size_t i = 0; i < dict.items.size() && !arena.overdrawn(); ++i) {
    if (i > 0) out += ", ";
    append_repr(arena, out, dict.items[i].first, depth);
    out += ": ";
    append_repr(arena, out, dict.items[i].second, depth);
  }
  out += '}';
}

template <typename Items, typename Equal>
bool all_equal(const Items& left, const Items& right, Equal same) {
  return left.size() == right.size() && std::equal(left.begin(), left.end(), right.begin(), same);
}

// Where `key` is, or the size. Linear, and paid for: templates' dicts are small.
size_t position(Arena& arena, const Dict& dict, const Value& key) {
  for (size_t i = 0; i < dict.items.size() && !arena.overdrawn(); ++i) {
    if (equal(arena, dict.items[i].first, key)) return i;
  }
  return dict.items.size();
}

bool equal_dicts(Arena& arena, const Dict& left, const Dict& right, int depth) {
  if (left.items.size() != right.items.size()) return false;
  return std::all_of(left.items.begin(), left.items.end(), [&](const auto& item) {
    const Value* other = find(arena, right, item.first);
    return other != nullptr && equal(arena, item.second, *other, depth);
  });
}

}  // namespace

std::string_view type_name(const Value& value) {
  struct Namer {
    std::string_view operator()(const Undefined&) const { return "Undefined"; }
    std::string_view operator()(const None&) const { return "NoneType"; }
    std::string_view operator()(bool) const { return "bool"; }
    std::string_view operator()(int64_t) const { return "int"; }
    std::string_view operator()(double) const { return "float"; }
    std::string_view operator()(std::string_view) const { return "str"; }
    std::string_view operator()(const Sequence* s) const { return sequence_name(s->kind); }
    std::string_view operator()(const Dict*) const { return "dict"; }
    std::string_view operator()(const Namespace*) const { return "Namespace"; }
    std::string_view operator()(const Loop*) const { return "LoopContext"; }
    std::string_view operator()(const Callable*) const { return "function"; }
  };
  return std::visit(Namer{}, value);
}

bool truthy(const Value& value) {
  if (is<Undefined>(value) || is<None>(value)) return false;
  if (const bool* flag = get<bool>(value)) return *flag;
  if (const int64_t* whole = get<int64_t>(value)) return *whole != 0;
  if (const double* real = get<double>(value)) return *real != 0;
  if (const auto* text = get<std::string_view>(value)) return !text->empty();
  if (const auto* dict = get<const Dict*>(value)) return !(*dict)->items.empty();
  if (const auto* sequence = get<const Sequence*>(value)) {
    return (*sequence)->kind == Sequence::Kind::kStream || !(*sequence)->items.empty();
  }
  return true;
}

const int64_t* integer(const Value& value, int64_t& storage) {
  if (const bool* flag = get<bool>(value)) {
    storage = *flag ? 1 : 0;
    return &storage;
  }
  return get<int64_t>(value);
}

bool number(const Value& value, double& as_double) {
  int64_t storage = 0;
  if (const double* real = get<double>(value)) {
    as_double = *real;
  } else if (const int64_t* whole = integer(value, storage)) {
    as_double = static_cast<double>(*whole);
  } else {
    return false;
  }
  return true;
}

bool equal(Arena& arena, const Value& left, const Value& right, int depth) {
  if (depth > Arena::kMaxDepth) arena.overdraw("values are nested too deeply to be compared");
  if (!arena.spend(Arena::kValueCost)) return false;
  int64_t left_storage = 0;
  int64_t right_storage = 0;
  const int64_t* a = integer(left, left_storage);
  const int64_t* b = integer(right, right_storage);
  if (a != nullptr && b != nullptr) return *a == *b;
  double x = 0;
  double y = 0;
  if (number(left, x) && number(right, y)) return x == y;
  if (left.index() != right.index()) return false;
  if (is<Undefined>(left) || is<None>(left)) return true;
  if (const auto* text = get<std::string_view>(left)) {
    arena.spend(text->size());
    return *text == *get<std::string_view>(right);
  }
  if (const auto* sequence = get<const Sequence*>(left)) {
    const Sequence* other = *get<const Sequence*>(right);
    return (*sequence)->kind == other->kind &&
           all_equal((*sequence)->items, other->items, [&](const Value& one, const Value& two) {
             return equal(arena, one, two, depth + 1);
           });
  }
  if (const auto* dict = get<const Dict*>(left)) {
    return equal_dicts(arena, **dict, **get<const Dict*>(right), depth + 1);
  }
  if (const auto* names = get<Namespace*>(left)) return *names == *get<Namespace*>(right);
  if (const auto* loop = get<const Loop*>(left)) return *loop == *get<const Loop*>(right);
  return *get<const Callable*>(left) == *get<const Callable*>(right);
}

const Value* find(Arena& arena, const Dict& dict, const Value& key) {
  const size_t at = position(arena, dict, key);
  return at == dict.items.size() ? nullptr : &dict.items[at].second;
}

void insert(Arena& arena, Dict& dict, const Value& key, const Value& value) {
  const size_t at = position(arena, dict, key);
  if (at < dict.items.size()) {
    dict.items[at].second = value;
  } else if (arena.spend(2 * sizeof(Value))) {
    dict.items.emplace_back(key, value);
  }
}

std::string_view str(Arena& arena, const Value& value) {
  if (const auto* text = get<std::string_view>(value)) return *text;
  std::string out;
  append_str(arena, out, value);
  return arena.text(std::move(out));
}

void append_str(Arena& arena, std::string& out, const Value& value) {
  if (const auto* text = get<std::string_view>(value)) {
    if (arena.spend(text->size())) out += *text;
  } else if (!is<Undefined>(value)) {
    append_repr(arena, out, value);
  }
}

void append_repr(Arena& arena, std::string& out, const Value& value, int depth) {
  if (depth > Arena::kMaxDepth) arena.overdraw("values are nested too deeply to be printed");
  if (!arena.spend(Arena::kValueCost)) return;
  if (is<Undefined>(value)) {
    out += "Undefined";
  } else if (is<None>(value)) {
    out += "None";
  } else if (const bool* flag = get<bool>(value)) {
    out += *flag ? "True" : "False";
  } else if (const int64_t* whole = get<int64_t>(value)) {
    out += fmt::format("{}", *whole);
  } else if (const double* real = get<double>(value)) {
    out += float_repr(*real);
  } else if (const auto* text = get<std::string_view>(value)) {
    if (arena.spend(4 * text->size())) append_quoted(out, *text);
  } else if (const auto* sequence = get<const Sequence*>(value)) {
    append_sequence(arena, out, **sequence, depth + 1);
  } else if (const auto* dict = get<const Dict*>(value)) {
    append_dict(arena, out, **dict, depth + 1);
  } else {
    out += fmt::format("<{}>", type_name(value));
  }
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

}  // namespace quarot::jinja
