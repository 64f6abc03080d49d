// What the methods of strings and the filters of the same name share.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace quarot::jinja {

// str.split and str.rsplit.
struct Splitter {
  const std::string_view* separator = nullptr;  // null: runs of white space
  int64_t limit = -1;                           // splits at most; negative: no limit

  std::vector<std::string_view> from_left(std::string_view text) const;
  std::vector<std::string_view> from_right(std::string_view text) const;
};

// The first `count` occurrences, all of them where it is negative.
std::string_view replace(Arena& arena, std::string_view text, std::string_view from,
                         std::string_view to, int64_t count);
std::string_view join(Arena& arena, const std::vector<Value>& items, std::string_view separator);

// dict.keys(), values() or items(), as `kind` says.
Value dict_view(Arena& arena, const Dict& dict, Sequence::Kind kind);

}  // namespace quarot::jinja
