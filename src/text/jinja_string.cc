#include "text/jinja_string.h"

#include <algorithm>

#include "text/jinja_text.h"

namespace quarot::jinja {

namespace {

// The first run of characters that are no white space; `text` keeps what follows it.
std::string_view take_word(std::string_view& text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view next = rest;
    if (is_space(take_character(next))) break;
    rest = next;
  }
  const std::string_view word = text.substr(0, text.size() - rest.size());
  text = rest;
  return word;
}

std::string_view take_last_word(std::string_view& text) {
  const std::vector<std::string_view> all = characters(text);
  size_t size = 0;
  for (auto character = all.rbegin(); character != all.rend() && !is_space(*character);
       ++character) {
    size += character->size();
  }
  const std::string_view word = text.substr(text.size() - size);
  text.remove_suffix(size);
  return word;
}

}  // namespace

std::vector<std::string_view> Splitter::from_left(std::string_view text) const {
  std::vector<std::string_view> parts;
  const auto full = [&] { return limit >= 0 && static_cast<int64_t>(parts.size()) >= limit; };
  if (separator != nullptr) {
    for (size_t at = text.find(*separator); at != std::string_view::npos && !full();
         at = text.find(*separator)) {
      parts.push_back(text.substr(0, at));
      text.remove_prefix(at + separator->size());
    }
    parts.push_back(text);
    return parts;
  }
  text = strip(text, Side::kLeft);
  while (!text.empty() && !full()) {
    parts.push_back(take_word(text));
    text = strip(text, Side::kLeft);
  }
  if (!text.empty()) parts.push_back(text);
  return parts;
}

std::vector<std::string_view> Splitter::from_right(std::string_view text) const {
  if (limit < 0) return from_left(text);
  std::vector<std::string_view> parts;
  const auto full = [&] { return static_cast<int64_t>(parts.size()) >= limit; };
  if (separator != nullptr) {
    for (size_t at = text.rfind(*separator); at != std::string_view::npos && !full();
         at = text.rfind(*separator)) {
      parts.push_back(text.substr(at + separator->size()));
      text = text.substr(0, at);
    }
    parts.push_back(text);
  } else {
    text = strip(text, Side::kRight);
    while (!text.empty() && !full()) {
      parts.push_back(take_last_word(text));
      text = strip(text, Side::kRight);
    }
    if (!text.empty()) parts.push_back(text);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::string_view replace(Arena& arena, std::string_view text, std::string_view from,
                         std::string_view to, int64_t count) {
  std::string replaced;
  const auto append = [&](std::string_view part) {
    if (arena.affords(1, replaced.size() + part.size())) replaced += part;
  };
  while (count != 0 && !arena.overdrawn()) {
    const size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    append(text.substr(0, at));
    append(to);
    text.remove_prefix(at + from.size());
    --count;
    if (!from.empty()) continue;
    if (text.empty()) break;
    append(take_character(text));  // nothing stands between any two characters
  }
  append(text);
  return arena.text(std::move(replaced));
}

std::string_view join(Arena& arena, const std::vector<Value>& items, std::string_view separator) {
  std::string joined;
  for (size_t i = 0; i < items.size() && !arena.overdrawn(); ++i) {
    if (i > 0 && arena.spend(separator.size())) joined += separator;
    append_str(arena, joined, items[i]);
  }
  return arena.text(std::move(joined));
}

Value dict_view(Arena& arena, const Dict& dict, Sequence::Kind kind) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) {
    if (arena.overdrawn()) break;
    if (kind == Sequence::Kind::kItems) {
      items.push_back(arena.sequence(Sequence::Kind::kTuple, {key, value}));
    } else {
      items.push_back(kind == Sequence::Kind::kKeys ? key : value);
    }
  }
  return arena.sequence(kind, std::move(items));
}

}  // namespace quarot::jinja
