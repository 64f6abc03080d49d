// The filters are in two files; this joins their tables.
#pragma once

#include <string_view>
#include <unordered_map>

#include "text/jinja_callable.h"

namespace quarot::jinja {

using FilterTable = std::unordered_map<std::string_view, Builtin>;

const FilterTable& text_filters();        // of one value: strings, numbers, JSON
const FilterTable& collection_filters();  // of many: map, select, sort, …

}  // namespace quarot::jinja
