#include "eval/result_store.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "formats/json.h"

namespace quarot {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_finite(const json& value) {
  if (value.is_number_float()) return std::isfinite(value.get<double>());
  return !value.is_structured() || std::ranges::all_of(value, is_finite);
}

std::string text_of(const json& value) {
  return value.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace

void to_json(json& json, const ResultKey& key) {
  json = {{"program", key.program},
          {"model", key.model},
          {"recipe", key.recipe},
          {"seed", key.recipe.seed},
          {"calibration", key.calibration},
          {"device", key.device},
          {"measure", key.measure},
          {"protocol", key.protocol},
          {"tokens", key.tokens}};
  json["recipe"].erase("name");
}

Result<ResultStore> ResultStore::open(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) {
    return error(ErrorCode::kIo, "{}: cannot make this folder for results: {}", folder.string(),
                 failed.message());
  }
  return ResultStore(folder);
}

fs::path ResultStore::path(const ResultKey& key) const {
  return folder_ / (content_hash(text_of(key)) + ".json");
}

Result<std::optional<json>> ResultStore::find(const ResultKey& key) const {
  const fs::path file = path(key);
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return std::optional<json>();
  const Result<json> record = read_json_file(file);
  if (!record.ok()) return record.error().with_context("a stored result cannot be read; remove it");
  const bool whole = record->is_object() && record->contains("result") && record->contains("key");
  if (!whole || text_of((*record)["key"]) != text_of(key)) {
    return error(ErrorCode::kCorrupt, "{}: not the result that its name says; remove the file",
                 file.string());
  }
  return std::optional<json>((*record)["result"]);
}

Status ResultStore::keep(const ResultKey& key, const json& result) const {
  if (!is_finite(result)) return {};
  return write_file_atomically(path(key), text_of({{"key", key}, {"result", result}}));
}

Result<std::string> model_hash(const Checkpoint& checkpoint) {
  std::vector<fs::path> files;
  if (std::error_code failed; fs::is_directory(checkpoint.path(), failed)) {
    for (const auto& entry : fs::directory_iterator(checkpoint.path(), failed)) {
      if (entry.is_regular_file(failed)) files.push_back(entry.path());
    }
  } else {
    files.push_back(checkpoint.path());
  }
  std::ranges::sort(files);
  // A folder may hold several models' weights: which were asked for.
  std::string hashes = checkpoint.tensors().path().filename().string() + "\n";
  for (const fs::path& path : files) {
    QUAROT_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    hashes += path.filename().string() + " " + content_hash(file.bytes()) + "\n";
    file.drop(file.bytes());
  }
  return content_hash(hashes);
}

}  // namespace quarot
