#include "formats/json.h"

#include <array>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "base/error.h"
#include "base/mapped_file.h"

namespace quarot {

namespace {

using nlohmann::json;

// Told of every event while parsing, so that a deep document is left before it is built.
class Strictness {
 public:
  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= kMaxJsonDepth) {
          throw std::length_error(fmt::format("nested deeper than {} levels", kMaxJsonDepth));
        }
        keys_[static_cast<size_t>(depth)].clear();
        break;
      case json::parse_event_t::key: {
        // A key lies one level inside its object.
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_[static_cast<size_t>(depth - 1)].insert(key).second) {
          throw std::invalid_argument(fmt::format("key {:?} is there twice in one object", key));
        }
        break;
      }
      default:
        break;
    }
    return true;
  }

 private:
  std::array<std::unordered_set<std::string>, kMaxJsonDepth> keys_;
};

}  // namespace

Result<json> parse_json(std::string_view text) {
  Strictness strictness;
  try {
    return json::parse(text, std::ref(strictness));
  } catch (const std::exception& e) {
    return error(ErrorCode::kCorrupt, "not valid JSON: {}", e.what());
  }
}

Result<json> read_json_file(const std::filesystem::path& path) {
  QUAROT_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  Result<json> value = parse_json(text);
  if (!value.ok()) return value.error().with_context(path.string());
  return value;
}

}  // namespace quarot
