#include "model/checksums.h"

#include <map>
#include <mutex>

#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"

namespace quarot {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Error damaged(const std::string& what) {
  return error(ErrorCode::kCorrupt,
               "{}: damaged; its checksum is not the one in quarot.json: copy the model again, or "
               "write it again",
               what);
}

// The strings of an object within the manifest, which a stranger may have written.
std::map<std::string, std::string> strings_in(const json& manifest, const char* name) {
  std::map<std::string, std::string> strings;
  const auto object = manifest.find(name);
  if (object == manifest.end()) return strings;
  for (const auto& [key, value] : object->items())
    strings[key] = value.is_string() ? value.get<std::string>() : "";
  return strings;
}

std::string hash_without_own(json manifest) {
  manifest.erase("checksum");
  return content_hash(manifest.dump());
}

bool is_shard(const fs::path& path) { return path.extension() == ".safetensors"; }

// Of a small file, or of a shard's header.
Result<std::string> file_hash(const fs::path& path) {
  const auto contents = is_shard(path) ? read_safetensors_header(path) : read_text_file(path);
  if (!contents.ok()) return contents.error();
  return content_hash(*contents);
}

class VerifiedTensors final : public TensorSource {
 public:
  VerifiedTensors(std::unique_ptr<SafetensorsSource> source,
                  std::map<std::string, std::string> checksums)
      : source_(std::move(source)), expected_(std::move(checksums)) {}

  const fs::path& path() const override { return source_->path(); }
  const std::vector<TensorInfo>& tensors() const override { return source_->tensors(); }
  const TensorInfo* find(std::string_view name) const override { return source_->find(name); }
  Result<Matrix> read(std::string_view name) const override {
    QUAROT_RETURN_IF_ERROR(verify(name));
    return source_->read(name);
  }
  Result<Matrix> read_rows(std::string_view name, int64_t first, int64_t count) const override {
    QUAROT_RETURN_IF_ERROR(verify(name));
    return source_->read_rows(name, first, count);
  }
  Result<BasicMatrix<int32_t>> read_int32(std::string_view name) const override {
    QUAROT_RETURN_IF_ERROR(verify(name));
    return source_->read_int32(name);
  }

 private:
  Status verify(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    const auto expected = expected_.find(std::string(name));
    if (expected == expected_.end()) return {};  // not there, or found to be right before
    QUAROT_ASSIGN_OR_RETURN(const RawTensor tensor, source_->raw(name));
    if (content_hash(tensor.bytes) != expected->second)
      return damaged(fmt::format("{}: tensor {}", path().string(), name));
    expected_.erase(expected);
    return {};
  }

  std::unique_ptr<SafetensorsSource> source_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::string> expected_;  // of the tensors not read yet
};

}  // namespace

Status add_checksums(const std::vector<fs::path>& files, json& manifest) {
  json& hashes = manifest["files"] = json::object();
  json& tensors = manifest["tensors"] = json::object();
  for (const fs::path& path : files) {
    QUAROT_ASSIGN_OR_RETURN(hashes[path.filename().string()], file_hash(path));
    if (!is_shard(path)) continue;
    QUAROT_ASSIGN_OR_RETURN(const auto shard, open_safetensors(path));
    for (const TensorInfo& info : shard->tensors()) {
      QUAROT_ASSIGN_OR_RETURN(const RawTensor tensor, shard->raw(info.name));
      tensors[info.name] = content_hash(tensor.bytes);
    }
  }
  manifest["checksum"] = hash_without_own(manifest);
  return {};
}

Status check_files(const fs::path& folder, const json& manifest) {
  if (!manifest.is_object() || manifest.value("checksum", json()) != hash_without_own(manifest))
    return damaged((folder / "quarot.json").string());
  for (const auto& [name, expected] : strings_in(manifest, "files")) {
    QUAROT_ASSIGN_OR_RETURN(const std::string found, file_hash(folder / name));
    if (found != expected)
      return damaged((folder / name).string() + (is_shard(name) ? ": header" : ""));
  }
  return {};
}

std::unique_ptr<TensorSource> verified(std::unique_ptr<SafetensorsSource> tensors,
                                       const json& manifest) {
  return std::make_unique<VerifiedTensors>(std::move(tensors), strings_in(manifest, "tensors"));
}

}  // namespace quarot
