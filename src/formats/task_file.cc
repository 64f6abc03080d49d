#include "formats/task_file.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "formats/json.h"

namespace quarot {

namespace {

using nlohmann::json;

template <typename... Args>
Error corrupt(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::kCorrupt, format, std::forward<Args>(args)...);
}

bool is_text_pair(const json& value) {
  return value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string() &&
         !value[1].get_ref<const std::string&>().empty();
}

constexpr size_t kMaxPairs = 256;  // they are scored as one batch

Status read_pairs(const json& object, TaskItem& item) {
  const auto pairs = object.find("pairs");
  if (pairs == object.end() || !pairs->is_array() || pairs->empty() ||
      !std::ranges::all_of(*pairs, is_text_pair)) {
    return corrupt("\"pairs\": expected [[context, continuation], …], continuations not empty");
  }
  if (pairs->size() > kMaxPairs) {
    return corrupt("{} pairs, expected at most {}", pairs->size(), kMaxPairs);
  }
  for (const json& pair : *pairs) {
    item.pairs.push_back({pair[0].get<std::string>(), pair[1].get<std::string>()});
  }
  return {};
}

Status read_gold(const json& object, TaskItem& item) {
  const size_t count = item.pairs.size();
  const auto gold = object.find("gold");
  if (gold == object.end()) {
    if (count == 1) return {};
    return corrupt("{} pairs without \"gold\", which says the right one", count);
  }
  if (!gold->is_number_unsigned() || gold->get<uint64_t>() >= count) {
    return corrupt("\"gold\" is {}, expected 0 to {}", gold->dump(), count - 1);
  }
  item.gold = gold->get<size_t>();
  const auto norm = object.find("norm");
  const auto is_length = [](const json& value) {
    return value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>());
  };
  if (norm == object.end() || !norm->is_array() || norm->size() != count ||
      !std::ranges::all_of(*norm, is_length)) {
    return corrupt("\"norm\": expected {} numbers above 0, the characters of each choice", count);
  }
  item.norm = norm->get<std::vector<double>>();
  return {};
}

Result<TaskItem> parse_item(std::string_view line) {
  QUAROT_ASSIGN_OR_RETURN(const json object, parse_json(line));
  if (!object.is_object()) return corrupt("expected a JSON object");
  TaskItem item;
  QUAROT_RETURN_IF_ERROR(read_pairs(object, item));
  QUAROT_RETURN_IF_ERROR(read_gold(object, item));
  return item;
}

}  // namespace

Result<std::vector<TaskItem>> parse_task_file(std::string_view contents, const std::string& where) {
  std::vector<TaskItem> items;
  for (int64_t number = 1; !contents.empty(); ++number) {
    const std::string_view line = contents.substr(0, contents.find('\n'));
    contents.remove_prefix(std::min(line.size() + 1, contents.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Result<TaskItem> item = parse_item(line);
    if (!item.ok()) return item.error().with_context(fmt::format("{}:{}", where, number));
    item->line = number;
    if (!items.empty() && item->gold.has_value() != items.front().gold.has_value()) {
      return corrupt("{}:{}: expected \"gold\" in every line or in none", where, number);
    }
    items.push_back(*std::move(item));
  }
  if (items.empty()) return corrupt("{}: no items, expected one JSON object a line", where);
  return items;
}

}  // namespace quarot
