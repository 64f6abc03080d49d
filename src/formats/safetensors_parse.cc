#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "formats/json.h"
#include "formats/parsers.h"

namespace quarot {

namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

Result<int64_t> whole_number(const json& value, std::string_view what) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMost) {
    return corrupt(fmt::format("{} must be whole numbers from 0 to 2^63 - 1", what));
  }
  return value.get<int64_t>();
}

Result<std::vector<int64_t>> whole_numbers(const json& entry, const char* key) {
  const auto it = entry.find(key);
  if (it == entry.end() || !it->is_array()) {
    return corrupt(fmt::format("expected an array \"{}\"", key));
  }
  std::vector<int64_t> numbers;
  for (const json& value : *it) {
    QUAROT_ASSIGN_OR_RETURN(const int64_t number, whole_number(value, key));
    numbers.push_back(number);
  }
  return numbers;
}

// A tensor's entry in the header, checked on its own.
struct Entry {
  TensorInfo info;
  const BlockFormat* format;
  int64_t begin, end;
};

Result<Entry> parse_entry(const std::string& name, const json& entry, int64_t data_bytes) {
  if (!entry.is_object()) return corrupt("expected an object");
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return corrupt("expected a string \"dtype\"");
  const auto& type = dtype->get_ref<const std::string&>();
  const BlockFormat* format = safetensors_format(type);
  if (format == nullptr) {
    return error(ErrorCode::kUnsupported, "dtype {:?} is not known", type.substr(0, 40));
  }
  QUAROT_ASSIGN_OR_RETURN(auto shape, whole_numbers(entry, "shape"));
  QUAROT_ASSIGN_OR_RETURN(const int64_t bytes, format->bytes(shape));
  QUAROT_ASSIGN_OR_RETURN(const auto offsets, whole_numbers(entry, "data_offsets"));
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return corrupt(
        fmt::format("data_offsets [{}], expected a begin and an end", fmt::join(offsets, ", ")));
  }
  if (offsets[1] > data_bytes) {
    return corrupt(fmt::format("ends at byte {} of the data, which has {}: is the file truncated?",
                               offsets[1], data_bytes));
  }
  if (offsets[1] - offsets[0] != bytes) {
    return corrupt(fmt::format("data_offsets span {} bytes, expected {} for {} [{}]",
                               offsets[1] - offsets[0], bytes, type, fmt::join(shape, ", ")));
  }
  return Entry{{name, type, std::move(shape), bytes}, format, offsets[0], offsets[1]};
}

Result<std::map<std::string, std::string>> parse_metadata(const json& object) {
  if (!object.is_object()) return corrupt("__metadata__: expected an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) return corrupt("__metadata__: expected strings only");
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

Result<std::string_view> header_text(std::span<const std::byte> bytes) {
  if (bytes.size() < kLengthBytes) {
    return corrupt(fmt::format("{} bytes, too few for a safetensors file", bytes.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > bytes.size() - kLengthBytes || length > kMaxHeaderBytes) {
    return corrupt(fmt::format(
        "header of {} bytes in a file of {} (at most {}): truncated, or no safetensors file",
        length, bytes.size(), kMaxHeaderBytes));
  }
  return std::string_view(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                          static_cast<size_t>(length));
}

// Each byte of the data belongs to exactly one tensor. `entries` in order of their offsets.
Status check_cover(const std::vector<Entry>& entries, int64_t data_bytes) {
  int64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered) {
      return corrupt(fmt::format("{}: begins at byte {} of the data, expected {}: {}",
                                 tensor_label(entry.info.name), entry.begin, covered,
                                 entry.begin < covered ? "it overlaps the one before" : "a gap"));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return corrupt(fmt::format("{} bytes of data, but the tensors end at {}", data_bytes, covered));
  }
  return {};
}

Result<SafetensorsContents> parse(const FileView& file) {
  QUAROT_ASSIGN_OR_RETURN(const std::string_view text, header_text(file.bytes));
  QUAROT_ASSIGN_OR_RETURN(const json header, parse_json(text));
  if (!header.is_object()) return corrupt("header: expected a JSON object");
  const auto data = file.bytes.subspan(kLengthBytes + text.size());
  const auto data_bytes = static_cast<int64_t>(data.size());

  SafetensorsContents contents{TensorTable(file.path), {}};
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      QUAROT_ASSIGN_OR_RETURN(contents.metadata, parse_metadata(value));
      continue;
    }
    auto entry = parse_entry(name, value, data_bytes);
    if (!entry.ok()) return entry.error().with_context(tensor_label(name));
    entries.push_back(*std::move(entry));
  }
  std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
  QUAROT_RETURN_IF_ERROR(check_cover(entries, data_bytes));
  for (Entry& entry : entries) {
    const auto bytes = data.subspan(static_cast<size_t>(entry.begin),
                                    static_cast<size_t>(entry.end - entry.begin));
    QUAROT_RETURN_IF_ERROR(
        contents.tensors.add(std::move(entry.info), {entry.format, bytes, file.mapping}));
  }
  return contents;
}

// No way out of the folder, and nothing that the system would read as another name.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() < 256 &&
         std::ranges::none_of(
             name, [](unsigned char c) { return c == '/' || c == '\\' || c == ':' || c < ' '; });
}

Result<ShardMap> parse_index(std::string_view text) {
  QUAROT_ASSIGN_OR_RETURN(const json index, parse_json(text));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty()) {
    return corrupt("expected an object \"weight_map\" that names each tensor's file");
  }
  ShardMap shards;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string() || !is_plain_name(shard.get_ref<const std::string&>())) {
      return corrupt(fmt::format("{}: file {:?}, expected the name of a file beside the index",
                                 tensor_label(name),
                                 shard.is_string() ? shard.get<std::string>().substr(0, 300)
                                                   : std::string(shard.type_name())));
    }
    shards[shard.get<std::string>()].push_back(name);
  }
  return shards;
}

}  // namespace

Result<SafetensorsContents> parse_safetensors(const FileView& file) {
  auto contents = parse(file);
  if (!contents.ok()) return contents.error().with_context(file.path.string());
  return contents;
}

Result<ShardMap> parse_safetensors_index(std::string_view text, const std::filesystem::path& path) {
  auto shards = parse_index(text);
  if (!shards.ok()) return shards.error().with_context(path.string());
  return shards;
}

}  // namespace quarot
