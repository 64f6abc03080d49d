#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "formats/parsers.h"

namespace quarot {

namespace {

namespace fs = std::filesystem;

class SafetensorsFiles final : public TableSource<SafetensorsSource> {
 public:
  explicit SafetensorsFiles(SafetensorsContents contents)
      : TableSource(std::move(contents.tensors)), metadata_(std::move(contents.metadata)) {}

  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  Result<RawTensor> raw(std::string_view name) const override {
    const TensorInfo* info = find(name);
    if (info == nullptr) return table().not_found(name);
    const auto dtype = dtype_from_name(info->type);
    if (!dtype) {
      return error(ErrorCode::kUnsupported, "{}: {} is of type {}, which nothing here handles",
                   path().string(), tensor_label(name), info->type);
    }
    return RawTensor{*dtype, info->shape, table().stored(*info).bytes};
  }

  Result<BasicMatrix<int32_t>> read_int32(std::string_view name) const override {
    QUAROT_ASSIGN_OR_RETURN(const RawTensor stored, raw(name));
    if (stored.dtype != Dtype::kI32) {
      return error(ErrorCode::kCorrupt, "{}: {} is of type {}, expected I32", path().string(),
                   tensor_label(name), dtype_name(stored.dtype));
    }
    const TensorInfo& info = *find(name);
    BasicMatrix<int32_t> words(info.rows(), info.cols());
    std::memcpy(words.data(), stored.bytes.data(), stored.bytes.size());
    table().stored(info).drop();
    return words;
  }

 private:
  std::map<std::string, std::string> metadata_;
};

Result<SafetensorsContents> open_file(const fs::path& path) {
  QUAROT_ASSIGN_OR_RETURN(const FileView file, map_file(path));
  return parse_safetensors(file);
}

// Takes from `shard` the tensors that the index wants of it.
Status merge(const SafetensorsContents& shard, const std::vector<std::string>& wanted,
             SafetensorsContents& all) {
  std::vector<const TensorInfo*> infos;
  for (const std::string& name : wanted) {
    infos.push_back(shard.tensors.find(name));
    if (infos.back() == nullptr) return shard.tensors.not_found(name);
  }
  std::ranges::sort(infos);  // by place in the file
  for (const TensorInfo* info : infos) {
    QUAROT_RETURN_IF_ERROR(all.tensors.add(*info, shard.tensors.stored(*info)));
  }
  all.metadata.insert(shard.metadata.begin(), shard.metadata.end());
  return {};
}

Result<SafetensorsContents> open_index(const fs::path& path) {
  QUAROT_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  QUAROT_ASSIGN_OR_RETURN(const ShardMap shards, parse_safetensors_index(text, path));
  SafetensorsContents all{TensorTable(path), {}};
  for (const auto& [name, wanted] : shards) {
    auto shard = open_file(path.parent_path() / name);
    if (!shard.ok()) return shard.error().with_context(path.string());
    if (const Status merged = merge(*shard, wanted, all); !merged.ok()) {
      return merged.error().with_context(path.string());
    }
  }
  return all;
}

// What a folder is opened by; in a Hugging Face folder the single file goes first.
Result<fs::path> find_in_folder(const fs::path& folder) {
  std::error_code failed;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(folder / name, failed)) return folder / name;
  }
  std::vector<fs::path> files;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    if (it->path().extension() == ".safetensors") files.push_back(it->path());
  }
  if (failed) return error(ErrorCode::kIo, "{}: {}", folder.string(), failed.message());
  if (files.size() == 1) return files.front();
  return error(ErrorCode::kNotFound,
               "{}: expected model.safetensors, model.safetensors.index.json or one .safetensors "
               "file, found {} such files",
               folder.string(), files.size());
}

}  // namespace

Result<std::unique_ptr<SafetensorsSource>> open_safetensors(const fs::path& path) {
  fs::path file = path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    QUAROT_ASSIGN_OR_RETURN(file, find_in_folder(path));
  }
  QUAROT_ASSIGN_OR_RETURN(auto contents,
                          file.extension() == ".json" ? open_index(file) : open_file(file));
  return std::unique_ptr<SafetensorsSource>(
      std::make_unique<SafetensorsFiles>(std::move(contents)));
}

Result<std::string> read_safetensors_header(const fs::path& path) {
  QUAROT_ASSIGN_OR_RETURN(const FileView file, map_file(path));
  uint64_t length = 0;
  if (file.bytes.size() >= sizeof(length)) std::memcpy(&length, file.bytes.data(), sizeof(length));
  if (file.bytes.size() < sizeof(length) || length > file.bytes.size() - sizeof(length))
    return error(ErrorCode::kCorrupt, "{}: the header is cut off", path.string());
  const auto* text = reinterpret_cast<const char*>(file.bytes.data());
  return std::string(text, sizeof(length) + length);
}

}  // namespace quarot
