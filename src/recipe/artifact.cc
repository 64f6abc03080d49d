#include "recipe/artifact.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "formats/safetensors.h"
#include "quant/pack.h"
#include "quarot/version.h"
#include "recipe/prepare.h"

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

  Status write(const fs::path& path) const {
    std::vector<TensorPlan> plan;
    for (const Entry& entry : entries_) plan.push_back(entry.plan);
    QUAROT_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                            SafetensorsWriter::create(path, plan, {{"format", "pt"}}));
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
};

// "out/" is the folder "out", and its neighbour is "out.partial".
fs::path without_trailing_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
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
    QUAROT_ASSIGN_OR_RETURN(Model outer, load_outer(checkpoint_));
    QUAROT_RETURN_IF_ERROR(check(recipe_, outer.config));
    QUAROT_RETURN_IF_ERROR(begin_partial());
    QUAROT_RETURN_IF_ERROR(calibrate());
    const Transformer transformer(outer.config, recipe_.transforms);
    progress_.stage("writing layers", outer.config.layers + 1);
    shards_ = outer.config.layers + 1;
    for (int64_t i = 0; i < outer.config.layers; ++i) {
      QUAROT_RETURN_IF_ERROR(progress_.check());
      QUAROT_RETURN_IF_ERROR(write_layer(transformer, outer.config, i));
      progress_.advance(1);
    }
    QUAROT_RETURN_IF_ERROR(write_outer(transformer, outer));
    QUAROT_RETURN_IF_ERROR(write_index());
    QUAROT_RETURN_IF_ERROR(write_config(outer));
    QUAROT_RETURN_IF_ERROR(checkpoint_.save_tokenizer(partial_));
    QUAROT_RETURN_IF_ERROR(write_manifest());
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
    if (is_there(folder_)) {
      return error(ErrorCode::kInvalidArgument,
                   "{}: exists already; remove it or choose another folder", folder_.string());
    }
    const WeightQuant& w = recipe_.weights;
    if (options_.pack && !((w.bits == 4 || w.bits == 8) && w.symmetric)) {
      return error(ErrorCode::kUnsupported,
                   "weights of {} bits, {}: packed weights have 4 or 8 bits and are symmetric",
                   w.bits, w.symmetric ? "symmetric" : "asymmetric");
    }
    return {};
  }

  // What makes a half-finished folder ours to go on with.
  json identity() const {
    return {{"recipe", recipe_},
            {"source", checkpoint_.path().filename().string()},
            {"source_config", content_hash(checkpoint_.config().dump())},
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
    std::error_code failed;
    fs::create_directories(partial_, failed);
    if (failed)
      return error(ErrorCode::kIo, "{}: cannot create: {}", partial_.string(), failed.message());
    const fs::path mark = partial_ / "partial.json";
    const std::string wanted = identity().dump(2);
    Result<std::string> found = read_text_file(mark);
    const bool ours = found.ok() && *found == wanted;
    // What a killed run was writing has a temporary name; the shards it finished stay.
    for (const fs::directory_entry& entry : fs::directory_iterator(partial_, failed)) {
      if (ours && (entry.path() == mark || entry.path().extension() == ".safetensors")) continue;
      fs::remove_all(entry.path(), failed);
    }
    return write_file_atomically(mark, wanted);
  }

  Status calibrate() {
    if (!recipe_.calibrates()) return {};
    if (recipe_.uses_gptq()) {
      // Every layer is rounded under what the ones before it produce: not one at a time.
      QUAROT_ASSIGN_OR_RETURN(
          PreparedModel prepared,
          prepare_model(checkpoint_, tokenizer_, recipe_, options_.calibration, progress_));
      prepared_ = std::move(prepared.model);
      return {};
    }
    QUAROT_ASSIGN_OR_RETURN(const Model model, load_model(checkpoint_));
    QUAROT_ASSIGN_OR_RETURN(
        const auto windows,
        calibration_windows(recipe_, model, tokenizer_, options_.calibration, progress_));
    QUAROT_ASSIGN_OR_RETURN(statistics_, collect_statistics(model, windows, progress_));
    return {};
  }

  fs::path shard_path(int64_t index) const {
    return partial_ / fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, shards_);
  }

  Result<Layer> finished_layer(const Transformer& transformer, const ModelConfig& config,
                               int64_t index) {
    if (prepared_) return std::move(prepared_->layers[static_cast<size_t>(index)]);
    QUAROT_ASSIGN_OR_RETURN(Layer layer, load_layer(checkpoint_, config, index));
    LayerScales scales;
    LayerCenters centers;
    if (!statistics_.empty()) {
      const LayerStatistics& statistics = statistics_[static_cast<size_t>(index)];
      scales = balance_scales(recipe_, config, layer, statistics);
      centers = cache_centers(recipe_, statistics);
    }
    transformer.transform_layer(layer, index, scales, centers);
    if (!options_.pack) return layer;
    for (Linear& linear : layer.linears)
      linear.quantized = round_to_nearest(recipe_.weights, linear.weight);
    return layer;
  }

  Status write_layer(const Transformer& transformer, const ModelConfig& config, int64_t index) {
    const fs::path path = shard_path(index);
    if (is_there(path)) {
      ++report_.resumed_layers;
      return {};
    }
    QUAROT_ASSIGN_OR_RETURN(const Layer layer, finished_layer(transformer, config, index));
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
    return shard.write(path);
  }

  Status write_outer(const Transformer& transformer, Model& outer) {
    transformer.transform_outer(outer);
    Shard shard;
    shard.add_matrix("model.embed_tokens.weight", outer.embedding, options_.matrices);
    shard.add_vector("model.norm.weight", outer.final_norm);
    if (!outer.lm_head.empty())
      shard.add_matrix("lm_head.weight", outer.lm_head, options_.matrices);
    return shard.write(shard_path(shards_ - 1));
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
    }
    report_.bytes = total;
    const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    return write_file_atomically(partial_ / "model.safetensors.index.json", index.dump(1));
  }

  Status write_config(const Model& outer) {
    json config = checkpoint_.config();
    config["tie_word_embeddings"] = outer.lm_head.empty();
    config["dtype"] = options_.matrices == Dtype::kF32   ? "float32"
                      : options_.matrices == Dtype::kF16 ? "float16"
                                                         : "bfloat16";
    return write_file_atomically(partial_ / "config.json", config.dump(2));
  }

  Status write_manifest() {
    json manifest = {{"quarot_version", version()},
                     {"recipe", recipe_},
                     {"packed", options_.pack},
                     {"source", identity()["source"]},
                     {"source_config", identity()["source_config"]},
                     {"calibration", calibration_name()}};
    return write_file_atomically(partial_ / "quarot.json", manifest.dump(2));
  }

  Status finish() {
    std::error_code failed;
    fs::remove(partial_ / "partial.json", failed);
    fs::rename(partial_, folder_, failed);
    if (failed)
      return error(ErrorCode::kIo, "{}: cannot rename to {}: {}", partial_.string(),
                   folder_.string(), failed.message());
    return {};
  }

  const Checkpoint& checkpoint_;
  const Tokenizer& tokenizer_;
  const Recipe& recipe_;
  const ArtifactOptions& options_;
  fs::path folder_;
  fs::path partial_;
  Progress& progress_;
  std::vector<LayerStatistics> statistics_;
  std::optional<Model> prepared_;  // GPTQ only
  int64_t shards_ = 0;
  ArtifactReport report_;
};

}  // namespace

Result<ArtifactReport> write_artifact(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                      const Recipe& recipe, const ArtifactOptions& options,
                                      const fs::path& folder, Progress& progress) {
  return ArtifactWriter(checkpoint, tokenizer, recipe, options, folder, progress).write();
}

}  // namespace quarot
