// From the tokens of a template to its syntax tree.
#pragma once

#include <string_view>

#include "quarot/status.h"
#include "text/jinja_ast.h"

namespace quarot::jinja {

constexpr size_t kMaxSourceBytes = size_t{4} << 20;
constexpr int kMaxNesting = 100;  // of statements and expressions in each other

Result<Block> parse(std::string_view normalized);

}  // namespace quarot::jinja
