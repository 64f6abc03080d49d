// Cuts a template into text and tokens, with Jinja2's white-space control as transformers sets it:
// trim_blocks and lstrip_blocks on, one newline at the end dropped.
// https://jinja.palletsprojects.com/en/stable/templates/#whitespace-control
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quarot/status.h"

namespace quarot::jinja {

struct Token {
  enum class Kind {
    kText,        // outside of tags
    kPrintBegin,  // {{
    kPrintEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // unescaped
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;
  uint32_t offset = 0;  // in the source
  int64_t integer = 0;
  double real = 0;
};

// The source with every line end a \n and without the last one.
std::string normalize_newlines(std::string_view source);

Result<std::vector<Token>> tokenize(std::string_view normalized);

// "line 3, column 7: <message>"; columns count characters from 1.
Error error_at(std::string_view source, uint32_t offset, ErrorCode code, std::string_view message);

}  // namespace quarot::jinja
