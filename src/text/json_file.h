// JSON that someone else wrote: parsed without exceptions, read with the type checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "quarot/status.h"

namespace quarot {

// The error says where and what is wrong, not in which file.
Result<nlohmann::json> parse_json(std::string_view text);

// The same of a file; the error names it.
Result<nlohmann::json> read_json_file(const std::filesystem::path& path);

// The value at `key` if `object` is an object that has it and it is not null, else nullptr.
const nlohmann::json* find_value(const nlohmann::json& object, const char* key);

// The value at `key` if it is there and of the type.
std::optional<std::string> find_string(const nlohmann::json& object, const char* key);
std::optional<bool> find_bool(const nlohmann::json& object, const char* key);
std::optional<int64_t> find_integer(const nlohmann::json& object, const char* key);

std::optional<int64_t> as_integer(const nlohmann::json& value);

}  // namespace quarot
