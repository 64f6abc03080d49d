#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/atomic_file.h"
#include "base/error.h"
#include "formats/safetensors.h"
#include "formats/tensor_table.h"

namespace quarot {

struct SafetensorsWriter::State {
  std::filesystem::path path;
  AtomicFile file;
  std::vector<TensorPlan> plan;
  std::vector<int64_t> ends;  // of each planned tensor in the data
  size_t current = 0;         // the tensor being written
  int64_t written = 0;        // of the data
  bool open = true;           // until committed or a write failed

  Error invalid(const std::string& what) const {
    return error(ErrorCode::kInvalidArgument, "{}: {}", path.string(), what);
  }
};

namespace {

using nlohmann::json;

Result<std::vector<int64_t>> lay_out(const std::vector<TensorPlan>& plan) {
  std::vector<int64_t> ends;
  std::set<std::string_view> names = {"__metadata__"};
  int64_t end = 0;
  for (const TensorPlan& tensor : plan) {
    const std::string label = tensor_label(tensor.name);
    if (!names.insert(tensor.name).second) {
      return error(ErrorCode::kInvalidArgument, "{}: the name is taken", label);
    }
    const auto bytes = safetensors_format(dtype_name(tensor.dtype))->bytes(tensor.shape);
    if (!bytes.ok() || __builtin_add_overflow(end, *bytes, &end)) {
      return error(ErrorCode::kInvalidArgument, "{}: {}", label,
                   bytes.ok() ? "too large" : bytes.error().message());
    }
    ends.push_back(end);
  }
  return ends;
}

// The length and the JSON, padded with spaces so that the data starts at a multiple of 8.
Result<std::string> make_header(const std::vector<TensorPlan>& plan,
                                const std::vector<int64_t>& ends,
                                const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto member = [&](const std::string& name, const json& value) {
    text += fmt::format("{}{}:{}", text.size() > 1 ? "," : "", json(name).dump(), value.dump());
  };
  try {
    if (!metadata.empty()) member("__metadata__", metadata);
    for (size_t i = 0; i < plan.size(); ++i) {
      member(plan[i].name, {{"dtype", dtype_name(plan[i].dtype)},
                            {"shape", plan[i].shape},
                            {"data_offsets", {i == 0 ? 0 : ends[i - 1], ends[i]}}});
    }
  } catch (const json::exception&) {
    return error(ErrorCode::kInvalidArgument, "names and metadata must be UTF-8");
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string header(sizeof(length), '\0');
  std::memcpy(header.data(), &length, sizeof(length));
  return header + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::filesystem::path& path, std::vector<TensorPlan> plan,
    const std::map<std::string, std::string>& metadata) {
  auto ends = lay_out(plan);
  if (!ends.ok()) return ends.error().with_context(path.string());
  const auto header = make_header(plan, *ends, metadata);
  if (!header.ok()) return header.error().with_context(path.string());
  QUAROT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  QUAROT_RETURN_IF_ERROR(file.write(*header));
  return SafetensorsWriter(
      std::make_unique<State>(State{path, std::move(file), std::move(plan), *std::move(ends)}));
}

Status SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  State& s = *state_;
  if (!s.open) return s.invalid("finished; nothing more can be appended");
  while (s.current < s.plan.size() && s.plan[s.current].name != name &&
         s.written == s.ends[s.current]) {
    ++s.current;
  }
  if (s.current == s.plan.size() || s.plan[s.current].name != name) {
    return s.invalid(
        fmt::format("{} appended, expected {}", tensor_label(name),
                    s.current == s.plan.size() ? "no more" : tensor_label(s.plan[s.current].name)));
  }
  const int64_t missing = s.ends[s.current] - s.written;
  if (bytes.size() > static_cast<uint64_t>(missing)) {
    return s.invalid(fmt::format("{}: {} bytes appended, expected at most {}", tensor_label(name),
                                 bytes.size(), missing));
  }
  Status written = s.file.write(bytes);
  s.open = written.ok();
  s.written += static_cast<int64_t>(bytes.size());
  return written;
}

Status SafetensorsWriter::commit() {
  State& s = *state_;
  if (!s.open) return s.invalid("already committed, or a write failed before");
  const auto incomplete = std::ranges::upper_bound(s.ends, s.written);
  if (incomplete != s.ends.end()) {
    const auto index = static_cast<size_t>(incomplete - s.ends.begin());
    return s.invalid(fmt::format("{} is incomplete: {} of the file's {} bytes of data are there",
                                 tensor_label(s.plan[index].name), s.written, s.ends.back()));
  }
  s.open = false;
  return s.file.commit();
}

}  // namespace quarot
