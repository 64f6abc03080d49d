// Reading JSON files and their fields without exceptions: what is missing or of the wrong type is
// an error that names the file and the field.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quarot {

// The fields of one JSON object; `where` names it in errors.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string where)
      : object_(&object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  bool has(std::string_view key) const { return find(key) != nullptr; }

  // nullopt where the field is absent or null; an error where it is no T.
  template <typename T>
  Result<std::optional<T>> optional(std::string_view key) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return std::optional<T>();
    if (!is<T>(*value)) {
      return error(ErrorCode::kCorrupt, "{}: \"{}\" is {}, expected {}", where_, key, value->dump(),
                   type_name<T>());
    }
    return std::optional<T>(value->get<T>());
  }
  template <typename T>
  Result<T> optional(std::string_view key, T otherwise) const {
    QUAROT_ASSIGN_OR_RETURN(std::optional<T> value, optional<T>(key));
    return value ? *std::move(value) : std::move(otherwise);
  }
  template <typename T>
  Result<T> required(std::string_view key) const {
    QUAROT_ASSIGN_OR_RETURN(std::optional<T> value, optional<T>(key));
    if (!value) return error(ErrorCode::kCorrupt, "{}: \"{}\" is missing", where_, key);
    return *std::move(value);
  }
  // kInvalidArgument for a field that `known` has not: misspelt, or of another version, it would
  // otherwise be passed over in silence.
  Status check_names(const nlohmann::json& known, std::string_view what) const {
    for (const auto& [name, value] : object_->items()) {
      if (known.contains(name)) continue;
      std::vector<std::string> names;
      for (const auto& [known_name, ignored] : known.items()) names.push_back(known_name);
      return error(ErrorCode::kInvalidArgument, "{}: \"{}\" is no field of {}; there are {}",
                   where_, name, what, fmt::join(names, ", "));
    }
    return {};
  }
  // An empty object where the field is absent.
  Result<JsonFields> object(std::string_view key) const {
    static const nlohmann::json kEmpty = nlohmann::json::object();
    const nlohmann::json* value = find(key);
    if (value == nullptr) return JsonFields(kEmpty, where_);
    if (!value->is_object()) {
      return error(ErrorCode::kCorrupt, "{}: \"{}\" is no object", where_, key);
    }
    return JsonFields(*value, where_ + ": " + std::string(key));
  }

 private:
  const nlohmann::json* find(std::string_view key) const {
    const auto it = object_->find(key);
    return it == object_->end() || it->is_null() ? nullptr : &*it;
  }
  template <typename T>
  static bool is(const nlohmann::json& value) {
    if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
    if constexpr (std::is_same_v<T, std::string>) return value.is_string();
    if constexpr (std::is_same_v<T, double>) return value.is_number();
    if constexpr (std::is_same_v<T, int64_t>) return fits_int64(value);
    if constexpr (std::is_same_v<T, uint64_t>) {
      return value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0);
    }
    if constexpr (std::is_same_v<T, std::vector<double>>) {
      return value.is_array() &&
             std::ranges::all_of(value, [](const auto& v) { return v.is_number(); });
    }
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      return value.is_array() &&
             std::ranges::all_of(value, [](const auto& v) { return v.is_string(); });
    }
  }
  static bool fits_int64(const nlohmann::json& value) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX});
  }
  template <typename T>
  static std::string_view type_name() {
    if constexpr (std::is_same_v<T, bool>) return "true or false";
    if constexpr (std::is_same_v<T, std::string>) return "a string";
    if constexpr (std::is_same_v<T, double>) return "a number";
    if constexpr (std::is_same_v<T, int64_t>) return "an integer";
    if constexpr (std::is_same_v<T, uint64_t>) return "an integer, 0 or more";
    return "a list";
  }

  const nlohmann::json* object_;
  std::string where_;
};

}  // namespace quarot
