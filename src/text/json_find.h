// Fields of JSON that someone else wrote, read with the type checked.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace quarot {

// The value at `key` if `object` is an object that has it and it is not null, else nullptr.
const nlohmann::json* find_value(const nlohmann::json& object, const char* key);

// The value at `key` if it is there and of the type.
std::optional<std::string> find_string(const nlohmann::json& object, const char* key);
std::optional<bool> find_bool(const nlohmann::json& object, const char* key);
std::optional<int64_t> find_integer(const nlohmann::json& object, const char* key);

std::optional<int64_t> as_integer(const nlohmann::json& value);

}  // namespace quarot
