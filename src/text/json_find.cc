#include "text/json_find.h"

#include <limits>

namespace quarot {

using nlohmann::json;

const json* find_value(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> find_string(const json& object, const char* key) {
  const json* value = find_value(object, key);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return value->get_ref<const std::string&>();
}

std::optional<bool> find_bool(const json& object, const char* key) {
  const json* value = find_value(object, key);
  if (value == nullptr || !value->is_boolean()) return std::nullopt;
  return value->get<bool>();
}

std::optional<int64_t> find_integer(const json& object, const char* key) {
  const json* value = find_value(object, key);
  return value == nullptr ? std::nullopt : as_integer(*value);
}

std::optional<int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return std::nullopt;
  if (!value.is_number_integer()) return std::nullopt;
  return value.get<int64_t>();
}

}  // namespace quarot
