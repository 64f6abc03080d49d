#include "text/json_file.h"

#include <limits>

#include "base/error.h"
#include "base/mapped_file.h"

namespace quarot {

using nlohmann::json;

Result<json> parse_json(std::string_view text) {
  try {
    return json::parse(text);
  } catch (const json::exception& exception) {
    return error(ErrorCode::kCorrupt, "not JSON: {}", exception.what());
  }
}

Result<json> read_json_file(const std::filesystem::path& path) {
  QUAROT_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  auto value = parse_json(text);
  if (!value.ok()) return value.error().with_context(path.string());
  return value;
}

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
