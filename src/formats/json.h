// JSON from strangers: parsed strictly, errors as values.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "quarot/status.h"

namespace quarot {

inline constexpr int kMaxJsonDepth = 64;

// kCorrupt, saying where: not JSON, not UTF-8, a key twice in one object (which parsers resolve
// differently), or nested deeper than kMaxJsonDepth.
Result<nlohmann::json> parse_json(std::string_view text);

// The same of a file; the error names it.
Result<nlohmann::json> read_json_file(const std::filesystem::path& path);

}  // namespace quarot
