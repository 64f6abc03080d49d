#include "recipe/artifact.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folder_lock.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "model/checksums.h"
#include "quant/pack.h"
#include "quarot/version.h"
#include "recipe/choose_bits.h"
#include "recipe/prepare.h"
#include "recipe/residual_basis.h"
#include "text/utf8.h"

namespace quarot {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<std::byte> encode(std::span<const float> values, Dtype dtype) {
  std::vector<std::byte> bytes(values.size() * dtype_size(dtype));
  if (dtype == Dtype::kF32) {
    std::ranges::copy(std::as_bytes(values), bytes.begin());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = dtype == Dtype::kF16 ? float_to_f16(values[i]) : float_to_bf16(values[i]);
    bytes[2 * i] = static_cast<std::byte>(half & 0xffU);
    bytes[2 * i + 1] = static_cast<std::byte>(half >> 8);
  }
  return bytes;
}

// The tensors of one shard, gathered and then written.
class Shard {
 public:
  void add_matrix(const std::string& name, const Matrix& matrix, Dtype dtype) {
    add(name, dtype, {matrix.rows(), matrix.cols()}, encode(matrix.elements(), dtype));
  }
  void add_vector(const std::string& name, std::span<const float> values) {
    if (values.empty()) return;
    add(name, Dtype::kF32, {static_cast<int64_t>(values.size())}, encode(values, Dtype::kF32));
  }
  void add_packed(const std::string& name, const QuantizedWeight& weight) {
    const BasicMatrix<int32_t> words = pack_int32(weight.values.view(), weight.quant.bits);
    const auto word_bytes = std::as_bytes(words.elements());
    add(name + "_packed", Dtype::kI32, {words.rows(), words.cols()},
        {word_bytes.begin(), word_bytes.end()});
    add_matrix(name + "_scale", weight.scales, Dtype::kF32);
    const int64_t shape[] = {weight.values.rows(), weight.values.cols()};
    const auto shape_bytes = std::as_bytes(std::span(shape));
    add(name + "_shape", Dtype::kI64, {2}, {shape_bytes.begin(), shape_bytes.end()});
  }

  // Beside the tensors: how far rounding moved them.
  void add_errors(json errors) { errors_ = std::move(errors); }

  Status write(const fs::path& path) const {
    std::map<std::string, std::string> metadata = {{"format", "pt"}};
    if (!errors_.empty()) metadata["errors"] = errors_.dump();
    std::vector<TensorPlan> plan;
    for (const Entry& entry : entries_) plan.push_back(entry.plan);
    QUAROT_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                            SafetensorsWriter::create(path, plan, metadata));
    for (const Entry& entry : entries_)
      QUAROT_RETURN_IF_ERROR(writer.append(entry.plan.name, entry.bytes));
    return writer.commit();
  }

 private:
  struct Entry {
    TensorPlan plan;
    std::vector<std::byte> bytes;
  };
  void add(const std::string& name, Dtype dtype, std::vector<int64_t> shape,
           std::vector<std::byte> bytes) {
    entries_.push_back({{name, dtype, std::move(shape)}, std::move(bytes)});
  }
  std::vector<Entry> entries_;
  json errors_;
};

// By the linear's name; and the exponents of the scaling and the clip ratios of the activations,
// where they were searched.
json report_by_name(const LayerReport& report, const Recipe& recipe) {
  json result;
  const LayerErrors& errors = report.errors;
  for (const Role role : kRoles) {
    const RoundingError& error = errors[static_cast<size_t>(role)];
    json& linear = result[std::string(spaces_of(role).name)];
    linear["weight"] = error.weight;
    if (recipe.uses_gptq()) linear["output"] = error.output;
    const size_t site = site_index(spaces_of(role).input);
    if (recipe.scaling.search) linear["alpha"] = report.alphas[site];
    if (recipe.searches_clips()) linear["a_clip"] = report.clips[site];
  }
  return result;
}

// In a folder that is not finished: whose it is.
constexpr const char* kMark = "partial.json";

// "out/" is the folder "out", and its neighbour is "out.partial".
fs::path without_trailing_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

// A link that leads nowhere is in the way like any other file.
bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

// What a run leaves that was killed before it wrote its mark, or after it took it away.
bool is_unmarked_partial(const fs::path& folder) {
  if (is_there(folder / "quarot.json")) return true;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    if (entry.path().extension().string().starts_with(".tmp-")) continue;  // AtomicFile's
    return false;
  }
  return !failed;
}

class ArtifactWriter {
 public:
  ArtifactWriter(const Checkpoint& checkpoint, const Tokenizer& tokenizer, const Recipe& recipe,
                 const ArtifactOptions& options, const fs::path& folder, Progress& progress)
      : checkpoint_(checkpoint),
        tokenizer_(tokenizer),
        recipe_(recipe),
        options_(options),
        folder_(without_trailing_slash(folder)),
        partial_(folder_.string() + ".partial"),
        progress_(progress) {}

  Result<ArtifactReport> write() {
    QUAROT_RETURN_IF_ERROR(check_request());
    QUAROT_ASSIGN_OR_RETURN(config_,
                            parse_config(checkpoint_.config(), checkpoint_.path().string()));
    recipe_ = fitted(recipe_, config_);
    QUAROT_RETURN_IF_ERROR(check(recipe_, config_));
    QUAROT_RETURN_IF_ERROR(begin_partial());
    QUAROT_RETURN_IF_ERROR(begin_pipeline());
    shards_ = config_.layers + 1;
    progress_.stage("writing layers", shards_);
    for (int64_t i = 0; i < config_.layers; ++i) {
      QUAROT_RETURN_IF_ERROR(progress_.check());
      QUAROT_RETURN_IF_ERROR(is_there(shard_path(i)) ? skip_layer(i) : write_layer(i));
      progress_.advance(1);
    }
    QUAROT_RETURN_IF_ERROR(write_outer());
    QUAROT_RETURN_IF_ERROR(write_index());
    QUAROT_RETURN_IF_ERROR(checkpoint_.save_tokenizer(partial_));
    QUAROT_RETURN_IF_ERROR(finish());
    progress_.advance(1);
    return report_;
  }

 private:
  Status check_request() const {
    if (checkpoint_.manifest()) {
      return error(ErrorCode::kInvalidArgument,
                   "{}: this model carries a recipe already; give the original model",
                   checkpoint_.path().string());
    }
    QUAROT_RETURN_IF_ERROR(check_folder());
    const WeightQuant& w = recipe_.weights;
    if (recipe_.precision.needs_simulation() || recipe_.leaves_floats()) {
      return error(ErrorCode::kUnsupported,
                   "recipe {}: its quantisers are simulated only and have no form on disk; measure "
                   "it with quarot eval, and write one such as quarot or balanced",
                   recipe_.name);
    }
    if (options_.pack && !((w.bits == 4 || w.bits == 8) && w.symmetric)) {
      return error(ErrorCode::kUnsupported,
                   "weights of {} bits, {}: packed weights have 4 or 8 bits and are symmetric",
                   w.bits, w.symmetric ? "symmetric" : "asymmetric");
    }
    return {};
  }

  Status check_folder() const {
    const fs::path name = folder_.filename();
    if (name.empty() || name == "." || name == "..") {
      return error(ErrorCode::kInvalidArgument, "\"{}\": expected the name of a new folder",
                   folder_.string());
    }
    if (!is_there(folder_)) return {};
    return error(ErrorCode::kInvalidArgument,
                 "{}: exists already; remove it or choose another folder", folder_.string());
  }

  // What makes a half-finished folder ours to go on with; part of quarot.json later. Of the weights
  // the smallest tensor stands for all: no two trainings end with the same norm.
  Result<json> identity() const {
    QUAROT_ASSIGN_OR_RETURN(const Matrix norm, checkpoint_.tensors().read("model.norm.weight"));
    return json{{"quarot_version", version()},
                {"recipe", recipe_},
                {"source", lossy_utf8(checkpoint_.path().filename().string())},
                {"source_config", content_hash(checkpoint_.config().dump())},
                {"source_norm", content_hash(std::as_bytes(norm.elements()))},
                {"matrices", dtype_name(options_.matrices)},
                {"packed", options_.pack},
                {"calibration", calibration_name()}};
  }
  std::string calibration_name() const {
    if (!recipe_.calibrates()) return "none";
    if (!options_.calibration) return "self-generated";
    Result<std::string> text = read_text_file(*options_.calibration);
    return text.ok() ? content_hash(*text) : "unreadable";
  }

  Status begin_partial() {
    QUAROT_ASSIGN_OR_RETURN(manifest_, identity());
    std::error_code failed;
    fs::create_directories(partial_, failed);
    if (failed)
      return error(ErrorCode::kIo, "{}: cannot create: {}", partial_.string(), failed.message());
    QUAROT_ASSIGN_OR_RETURN(FolderLock lock, FolderLock::acquire(partial_));
    lock_.emplace(std::move(lock));
    QUAROT_RETURN_IF_ERROR(check_folder());  // whoever held the lock may have finished it
    const fs::path mark = partial_ / kMark;
    if (!is_there(mark) && !is_unmarked_partial(partial_)) {
      return error(ErrorCode::kInvalidArgument,
                   "{}: holds files that quarot did not write, where it would write; move it away, "
                   "or choose another folder",
                   partial_.string());
    }
    const std::string wanted = manifest_.dump(2);
    Result<std::string> found = read_text_file(mark);
    const bool ours = found.ok() && *found == wanted;
    // What a killed run was writing has a temporary name; the shards it finished stay. The mark
    // goes last: until then it says whose the others are.
    for (const fs::directory_entry& entry : fs::directory_iterator(partial_, failed)) {
      if (entry.path() == mark || (ours && entry.path().extension() == ".safetensors")) continue;
      if (fs::remove_all(entry.path(), failed); failed) {
        return error(ErrorCode::kIo, "{}: cannot remove: {}", entry.path().string(),
                     failed.message());
      }
    }
    return write_file_atomically(mark, wanted);
  }

  Status begin_pipeline() {
    std::vector<std::vector<Token>> windows;
    if (recipe_.calibrates()) {
      QUAROT_ASSIGN_OR_RETURN(windows, calibration_windows(recipe_, checkpoint_, tokenizer_,
                                                           options_.calibration, progress_));
    }
    for (const std::vector<Token>& window : windows)
      calibration_tokens_ += static_cast<int64_t>(window.size());
    const auto embed = [&](std::span<const Token> tokens) {
      return load_embeddings(checkpoint_.tensors(), config_, tokens);
    };
    QUAROT_ASSIGN_OR_RETURN(
        const std::optional<Orthogonal> found,
        residual_basis(recipe_, config_, windows, embed, layers_of(checkpoint_, config_), progress_,
                       options_.device));
    QUAROT_ASSIGN_OR_RETURN(
        recipe_, choose_bits(recipe_, config_, windows, embed, layers_of(checkpoint_, config_),
                             progress_, options_.device, found));
    manifest_["recipe"] = recipe_;
    QUAROT_ASSIGN_OR_RETURN(
        pipeline_, LayerPipeline::create(recipe_, config_, progress_, options_.device, found));
    return pipeline_->begin(windows, embed);
  }

  fs::path shard_path(int64_t index) const {
    return partial_ / fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, shards_);
  }

  // Written by an earlier run; the layers after it may need what it makes of the calibration
  // tokens.
  Status skip_layer(int64_t index) {
    ++report_.resumed_layers;
    if (!recipe_.calibrates()) return {};
    QUAROT_ASSIGN_OR_RETURN(const Layer original,
                            load_layer(checkpoint_.tensors(), config_, index));
    QUAROT_ASSIGN_OR_RETURN(const auto shard, open_safetensors(shard_path(index)));
    QUAROT_ASSIGN_OR_RETURN(Layer finished, load_layer(*shard, config_, index));
    finished.activation_bits = bits_of(recipe_.site_bits, index).activations;
    return pipeline_->skip(index, original, std::move(finished));
  }

  Status write_layer(int64_t index) {
    QUAROT_ASSIGN_OR_RETURN(Layer layer, load_layer(checkpoint_.tensors(), config_, index));
    QUAROT_ASSIGN_OR_RETURN(const LayerReport report, pipeline_->finish(index, layer));
    Shard shard;
    for (const Role role : kRoles) {
      const std::string name = linear_name(index, role);
      if (options_.pack) {
        shard.add_packed(name + ".weight", *layer[role].quantized);
      } else {
        shard.add_matrix(name + ".weight", layer[role].weight, options_.matrices);
      }
      shard.add_vector(name + ".bias", layer[role].bias);
    }
    const std::string prefix = fmt::format("model.layers.{}.", index);
    shard.add_vector(prefix + "input_layernorm.weight", layer.attention_norm);
    shard.add_vector(prefix + "post_attention_layernorm.weight", layer.ffn_norm);
    shard.add_vector(prefix + "self_attn.q_norm.weight", layer.query_norm);
    shard.add_vector(prefix + "self_attn.k_norm.weight", layer.key_norm);
    shard.add_vector(prefix + "self_attn.key_center", layer.key_center);
    shard.add_vector(prefix + "self_attn.value_center", layer.value_center);
    if (recipe_.searches_clips()) shard.add_vector(prefix + "activation_clips", layer.clips);
    if (options_.pack) shard.add_errors(report_by_name(report, recipe_));
    return shard.write(shard_path(index));
  }

  Status write_outer() {
    const TensorSource& tensors = checkpoint_.tensors();
    QUAROT_RETURN_IF_ERROR(check_outer(tensors, config_));
    const Transformer& transformer = pipeline_->transformer();
    const bool tied = config_.tied_embeddings && !transformer.unties() &&
                      recipe_.head_bits == recipe_.embedding_bits;
    QUAROT_RETURN_IF_ERROR(write_config(tied));

    std::vector<TensorPlan> plan;
    plan_table(kEmbedding, recipe_.embedding_bits, plan);
    plan.push_back({"model.norm.weight", Dtype::kF32, {config_.hidden}});
    if (!tied) plan_table(kHead, recipe_.head_bits, plan);
    QUAROT_ASSIGN_OR_RETURN(
        SafetensorsWriter writer,
        SafetensorsWriter::create(shard_path(config_.layers), plan, {{"format", "pt"}}));
    QUAROT_RETURN_IF_ERROR(
        write_table(writer, kEmbedding, recipe_.embedding_bits, kEmbedding,
                    [&](Matrix& rows) { transformer.transform_embedding(rows); }));
    QUAROT_ASSIGN_OR_RETURN(const Matrix norm, tensors.read("model.norm.weight"));
    std::vector<float> gain(norm.elements().begin(), norm.elements().end());
    const std::vector<float> ones(gain.size(), 1.0F);
    QUAROT_RETURN_IF_ERROR(writer.append(
        "model.norm.weight", std::as_bytes(std::span(transformer.unties() ? ones : gain))));
    if (!tied) {
      QUAROT_RETURN_IF_ERROR(write_table(
          writer, kHead, recipe_.head_bits, config_.tied_embeddings ? kEmbedding : kHead,
          [&](Matrix& rows) { transformer.transform_head(rows, gain); }));
    }
    return writer.commit();
  }

  static constexpr const char* kEmbedding = "model.embed_tokens.weight";
  static constexpr const char* kHead = "lm_head.weight";

  void plan_table(const std::string& name, int bits, std::vector<TensorPlan>& plan) const {
    if (bits == kFloatBits) {
      plan.push_back({name, options_.matrices, {config_.vocab, config_.hidden}});
      return;
    }
    plan.push_back(
        {name + "_packed", Dtype::kI32, {config_.vocab, packed_words(config_.hidden, bits)}});
    plan.push_back({name + "_scale", Dtype::kF32, {config_.vocab, 1}});
    plan.push_back({name + "_shape", Dtype::kI64, {2}});
  }

  // Some rows at a time: a table can be larger than two layers.
  Status write_table(SafetensorsWriter& writer, const std::string& name, int bits,
                     const char* source, FunctionRef<void(Matrix&)> transform) {
    constexpr int64_t kRows = 1024;
    std::vector<float> scales;
    for (int64_t first = 0; first < config_.vocab; first += kRows) {
      QUAROT_ASSIGN_OR_RETURN(
          Matrix rows,
          checkpoint_.tensors().read_rows(source, first, std::min(kRows, config_.vocab - first)));
      transform(rows);
      if (bits == kFloatBits) {
        QUAROT_RETURN_IF_ERROR(writer.append(name, encode(rows.elements(), options_.matrices)));
        continue;
      }
      const QuantizedWeight rounded = round_to_nearest({.bits = bits}, rows);
      const BasicMatrix<int32_t> words = pack_int32(rounded.values.view(), bits);
      QUAROT_RETURN_IF_ERROR(writer.append(name + "_packed", std::as_bytes(words.elements())));
      const std::span<const float> row_scales = rounded.scales.elements();
      scales.insert(scales.end(), row_scales.begin(), row_scales.end());
    }
    if (bits == kFloatBits) return {};
    QUAROT_RETURN_IF_ERROR(writer.append(name + "_scale", std::as_bytes(std::span(scales))));
    const int64_t shape[] = {config_.vocab, config_.hidden};
    return writer.append(name + "_shape", std::as_bytes(std::span(shape)));
  }

  Status write_index() {
    json map = json::object();
    int64_t total = 0;
    for (int64_t i = 0; i < shards_; ++i) {
      QUAROT_ASSIGN_OR_RETURN(const auto shard, open_safetensors(shard_path(i)));
      for (const TensorInfo& info : shard->tensors()) {
        map[info.name] = shard_path(i).filename().string();
        total += info.bytes;
      }
      if (const auto errors = shard->metadata().find("errors"); errors != shard->metadata().end()) {
        QUAROT_ASSIGN_OR_RETURN(json parsed, parse_json(errors->second));
        errors_.push_back(std::move(parsed));
      }
    }
    report_.bytes = total;
    const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    return write_file_atomically(partial_ / "model.safetensors.index.json", index.dump(1));
  }

  Status write_config(bool tied) {
    json config = checkpoint_.config();
    config["tie_word_embeddings"] = tied;
    config["dtype"] = options_.matrices == Dtype::kF32   ? "float32"
                      : options_.matrices == Dtype::kF16 ? "float16"
                                                         : "bfloat16";
    return write_file_atomically(partial_ / "config.json", config.dump(2));
  }

  // quarot.json last, with the checksums of all else.
  Status finish() {
    manifest_["bases"] = pipeline_->transformer().descriptions();
    manifest_["calibration_tokens"] = calibration_tokens_;
    if (!errors_.empty()) manifest_["errors"] = errors_;
    std::error_code failed;
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(partial_, failed)) {
      if (entry.path().filename() != kMark) files.push_back(entry.path());
    }
    if (failed)
      return error(ErrorCode::kIo, "{}: cannot read: {}", partial_.string(), failed.message());
    QUAROT_RETURN_IF_ERROR(add_checksums(files, manifest_));
    QUAROT_RETURN_IF_ERROR(write_file_atomically(partial_ / "quarot.json", manifest_.dump(2)));
    fs::remove(partial_ / kMark, failed);
    return rename_durably(partial_, folder_);
  }

  const Checkpoint& checkpoint_;
  const Tokenizer& tokenizer_;
  Recipe recipe_;
  const ArtifactOptions& options_;
  fs::path folder_;
  fs::path partial_;
  std::optional<FolderLock> lock_;  // on partial_
  Progress& progress_;
  ModelConfig config_;
  std::unique_ptr<LayerPipeline> pipeline_;
  int64_t shards_ = 0;
  int64_t calibration_tokens_ = 0;
  json manifest_;
  json errors_ = json::array();  // a layer
  ArtifactReport report_;
};

}  // namespace

Result<ArtifactReport> write_artifact(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                      const Recipe& recipe, const ArtifactOptions& options,
                                      const fs::path& folder, Progress& progress) {
  return ArtifactWriter(checkpoint, tokenizer, recipe, options, folder, progress).write();
}

std::optional<fs::path> find_source(const Checkpoint& artifact) {
  if (!artifact.manifest()) return std::nullopt;
  const auto text = [&](const char* key) {
    const auto found = artifact.manifest()->find(key);
    return found != artifact.manifest()->end() && found->is_string() ? found->get<std::string>()
                                                                     : std::string();
  };
  // A stranger may have written the manifest: no way out of these two folders.
  const fs::path name = text("source");
  if (name.empty() || name != name.filename() || name == "." || name == "..") return std::nullopt;
  std::error_code failed;
  const fs::path folder = fs::absolute(without_trailing_slash(artifact.path()), failed);
  for (const fs::path& candidate : {folder.parent_path() / name, fs::path(name)}) {
    if (!is_there(candidate)) continue;
    const auto source = open_checkpoint(candidate);
    if (source.ok() && !(*source)->manifest() &&
        content_hash((*source)->config().dump()) == text("source_config")) {
      return candidate;
    }
  }
  return std::nullopt;
}

}  // namespace quarot
