#include "model/model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/family.h"
#include "model/transform.h"
#include "quant/pack.h"

namespace quarot {

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Status check_shape(const TensorSource& tensors, const std::string& name,
                   const std::vector<int64_t>& expected) {
  const TensorInfo* info = tensors.find(name);
  if (info == nullptr) {
    return error(ErrorCode::kCorrupt, "{}: tensor {} is missing", tensors.path().string(), name);
  }
  if (info->shape != expected) {
    return error(ErrorCode::kCorrupt, "{}: tensor {} has shape {}, expected {}",
                 tensors.path().string(), name, shape_text(info->shape), shape_text(expected));
  }
  return {};
}

Result<Matrix> read_matrix(const TensorSource& tensors, const std::string& name, int64_t rows,
                           int64_t cols) {
  QUAROT_RETURN_IF_ERROR(check_shape(tensors, name, {rows, cols}));
  return tensors.read(name);
}

// What is multiplied with every token, and small: one number that is none would make all of them
// so.
Status check_values(const TensorSource& tensors, const std::string& name, const Matrix& values,
                    bool (*good)(float), std::string_view expected) {
  const auto bad = std::ranges::find_if_not(values.elements(), good);
  if (bad == values.elements().end()) return {};
  return error(ErrorCode::kCorrupt, "{}: tensor {} has a value of {}, expected {}",
               tensors.path().string(), name, *bad, expected);
}

Result<std::vector<float>> read_vector(const TensorSource& tensors, const std::string& name,
                                       int64_t size) {
  QUAROT_RETURN_IF_ERROR(check_shape(tensors, name, {size}));
  QUAROT_ASSIGN_OR_RETURN(const Matrix values, tensors.read(name));
  QUAROT_RETURN_IF_ERROR(check_values(
      tensors, name, values, [](float x) { return std::isfinite(x); }, "finite numbers"));
  return std::vector<float>(values.elements().begin(), values.elements().end());
}

// Where a linear's rows lie in the family's files.
struct LinearPlace {
  std::string tensor;  // without ".weight" or ".bias"
  int64_t first_row = 0;
  int64_t total_rows = 0;
};

LinearPlace place_of(const ModelConfig& config, int64_t layer, Role role) {
  const Family& family = *find_family(config.family);
  const auto spec = std::ranges::find(family.linears, role, &LinearSpec::role);
  LinearPlace place{fmt::format("model.layers.{}.{}", layer, spec->tensor)};
  for (const LinearSpec& other : family.linears) {
    if (other.tensor != spec->tensor) continue;
    if (other.role == role) place.first_row = place.total_rows;
    place.total_rows += config.width(spaces_of(other.role).output);
  }
  return place;
}

// compressed-tensors' pack-quantized layout. DESIGN.md, section 5.
struct PackedTensor {
  BasicMatrix<int32_t> words;
  Matrix scales;
  int bits = 4;
};

Result<PackedTensor> read_packed(const TensorSource& tensors, const std::string& name, int64_t rows,
                                 int64_t cols) {
  PackedTensor packed;
  QUAROT_ASSIGN_OR_RETURN(packed.words, tensors.read_int32(name + "_packed"));
  QUAROT_ASSIGN_OR_RETURN(packed.scales, tensors.read(name + "_scale"));
  packed.bits = packed.words.cols() == packed_words(cols, 4) ? 4 : 8;
  QUAROT_ASSIGN_OR_RETURN(const Matrix shape, tensors.read(name + "_shape"));
  const bool as_expected = std::ranges::equal(
      shape.elements(), std::array{static_cast<float>(rows), static_cast<float>(cols)});
  const int64_t groups = packed.scales.cols();
  if (!as_expected || packed.words.rows() != rows ||
      packed.words.cols() != packed_words(cols, packed.bits) || packed.scales.rows() != rows ||
      groups < 1 || cols % groups != 0) {
    return error(ErrorCode::kCorrupt, "{}: tensor {}_packed is no packed [{}, {}] with its scales",
                 tensors.path().string(), name, rows, cols);
  }
  QUAROT_RETURN_IF_ERROR(check_values(
      tensors, name + "_scale", packed.scales, [](float x) { return std::isfinite(x) && x > 0; },
      "numbers above 0"));
  return packed;
}

Result<QuantizedWeight> read_packed_weight(const TensorSource& tensors, const std::string& name,
                                           int64_t rows, int64_t cols) {
  QUAROT_ASSIGN_OR_RETURN(PackedTensor packed, read_packed(tensors, name, rows, cols));
  QuantizedWeight weight;
  weight.quant.bits = packed.bits;
  QUAROT_ASSIGN_OR_RETURN(weight.values, unpack_int32(packed.words.view(), cols, packed.bits));
  const int64_t groups = packed.scales.cols();
  weight.quant.group = groups == 1 ? 0 : cols / groups;
  weight.scales = std::move(packed.scales);
  weight.zeros = BasicMatrix<int32_t>(rows, groups, 0);
  return weight;
}

// Half precision stays as it is; what other types stand for is held as float32.
Storage storage_of(const TensorInfo& info) {
  if (info.type == "BF16") return Storage::kBF16;
  if (info.type == "F16") return Storage::kF16;
  return Storage::kF32;
}

// The embedding or lm_head. Read in pieces: the whole of it as float32 may not fit.
Result<RowTable> read_table(const TensorSource& tensors, const std::string& name, int64_t rows,
                            int64_t cols) {
  constexpr int64_t kPiece = 4096;
  if (tensors.find(name + "_packed") != nullptr) {
    QUAROT_ASSIGN_OR_RETURN(const PackedTensor packed, read_packed(tensors, name, rows, cols));
    if (packed.scales.cols() != 1) {
      return error(ErrorCode::kUnsupported,
                   "{}: tensor {}_packed has groups; expected one scale a row",
                   tensors.path().string(), name);
    }
    RowTable table(rows, cols, packed.bits == 4 ? Storage::kInt4 : Storage::kInt8);
    table.set_rows(0, packed.words.view(), packed.scales);
    return table;
  }
  QUAROT_RETURN_IF_ERROR(check_shape(tensors, name, {rows, cols}));
  RowTable table(rows, cols, storage_of(*tensors.find(name)));
  for (int64_t first = 0; first < rows; first += kPiece) {
    const int64_t count = std::min(kPiece, rows - first);
    QUAROT_ASSIGN_OR_RETURN(const Matrix piece, tensors.read_rows(name, first, count));
    table.set_rows(first, piece);
  }
  return table;
}

// Reads the linears of one layer. A tensor that several of them share is read once for all.
class LinearReader {
 public:
  LinearReader(const TensorSource& tensors, const ModelConfig& config, int64_t layer)
      : tensors_(&tensors), config_(&config), layer_(layer) {}

  Result<Linear> read(Role role) {
    const int64_t in = config_->width(spaces_of(role).input);
    const int64_t out = config_->width(spaces_of(role).output);
    const std::string own = linear_name(layer_, role);
    if (tensors_->find(own + ".weight_packed") != nullptr) return read_own_packed(own, out, in);
    LinearPlace place = place_of(*config_, layer_, role);
    // Files that quarot wrote have the parts of fused tensors under names of their own.
    if (tensors_->find(own + ".weight") != nullptr) place = {own, 0, out};
    if (place.tensor != name_) QUAROT_RETURN_IF_ERROR(load(place, in));
    Linear linear;
    if (place.total_rows == out) {
      linear.weight = std::move(weight_);
      name_.clear();
    } else {
      linear.weight = Matrix(ConstMatrixRef(weight_.view()).rows(place.first_row, out));
    }
    if (!bias_.empty()) {
      const auto first = bias_.begin() + place.first_row;
      linear.bias.assign(first, first + out);
    }
    return linear;
  }

 private:
  Result<Linear> read_own_packed(const std::string& name, int64_t out, int64_t in) const {
    Linear linear;
    QUAROT_ASSIGN_OR_RETURN(linear.quantized,
                            read_packed_weight(*tensors_, name + ".weight", out, in));
    QUAROT_ASSIGN_OR_RETURN(linear.bias, read_optional_vector(name + ".bias", out));
    return linear;
  }

  Result<std::vector<float>> read_optional_vector(const std::string& name, int64_t size) const {
    if (tensors_->find(name) == nullptr) return std::vector<float>();
    return read_vector(*tensors_, name, size);
  }

  Status load(const LinearPlace& place, int64_t in) {
    QUAROT_ASSIGN_OR_RETURN(weight_,
                            read_matrix(*tensors_, place.tensor + ".weight", place.total_rows, in));
    QUAROT_ASSIGN_OR_RETURN(bias_, read_optional_vector(place.tensor + ".bias", place.total_rows));
    name_ = place.tensor;
    return {};
  }

  const TensorSource* tensors_;
  const ModelConfig* config_;
  int64_t layer_;
  std::string name_;
  Matrix weight_;
  std::vector<float> bias_;
};

Result<SiteClips> read_clips(const TensorSource& tensors, const std::string& name) {
  SiteClips clips{};
  if (tensors.find(name) == nullptr) return clips;
  QUAROT_ASSIGN_OR_RETURN(const std::vector<float> values,
                          read_vector(tensors, name, std::ssize(clips)));
  for (const float clip : values) {
    if (clip > 0 && clip <= 1) continue;
    return error(ErrorCode::kCorrupt, "{}: tensor {} has a clip ratio of {}, expected (0, 1]",
                 tensors.path().string(), name, clip);
  }
  std::ranges::copy(values, clips.begin());
  return clips;
}

// The transforms that quarot.json says are left to the forward pass.
Result<OnlineTransforms> read_online_transforms(const Checkpoint& checkpoint,
                                                const ModelConfig& config) {
  if (!checkpoint.manifest()) return OnlineTransforms();
  const std::string where = (checkpoint.path() / "quarot.json").string();
  const auto recipe = checkpoint.manifest()->find("recipe");
  if (recipe == checkpoint.manifest()->end() || !recipe->is_object() ||
      !recipe->contains("transforms")) {
    return error(ErrorCode::kCorrupt, "{}: \"recipe\" with \"transforms\" is missing", where);
  }
  QUAROT_ASSIGN_OR_RETURN(const TransformSpec spec,
                          parse_transform_spec((*recipe)["transforms"], where));
  return online_transforms(config, spec);
}

}  // namespace

int64_t Model::bytes() const {
  int64_t elements = 0;
  for (const Layer& layer : layers) {
    for (const Linear& linear : layer.linears) elements += linear.weight.size();
  }
  return embedding.bytes() + lm_head.bytes() + elements * static_cast<int64_t>(sizeof(float));
}

TableBits Model::table_bits() const {
  const auto bits = [](const RowTable& table) {
    return table.is_integer() ? static_cast<int>(32 / table.per_word()) : kFloatBits;
  };
  return {bits(embedding), bits(head())};
}

std::string linear_name(int64_t layer, Role role) {
  const bool attention =
      role == Role::kQuery || role == Role::kKey || role == Role::kValue || role == Role::kOutput;
  return fmt::format("model.layers.{}.{}.{}", layer, attention ? "self_attn" : "mlp",
                     spaces_of(role).name);
}

void dequantize(Layer& layer) {
  for (Linear& linear : layer.linears) {
    if (!linear.quantized) continue;
    linear.weight = linear.quantized->dequantize();
    linear.quantized.reset();
  }
}

void dequantize(Model& model) {
  for (Layer& layer : model.layers) dequantize(layer);
}

Status check_outer(const TensorSource& tensors, const ModelConfig& config) {
  QUAROT_RETURN_IF_ERROR(
      check_shape(tensors, "model.embed_tokens.weight", {config.vocab, config.hidden}));
  QUAROT_RETURN_IF_ERROR(check_shape(tensors, "model.norm.weight", {config.hidden}));
  if (config.tied_embeddings) return {};
  return check_shape(tensors, "lm_head.weight", {config.vocab, config.hidden});
}

Result<Model> load_outer(const Checkpoint& checkpoint) {
  Model model;
  QUAROT_ASSIGN_OR_RETURN(model.config,
                          parse_config(checkpoint.config(), checkpoint.path().string()));
  const ModelConfig& config = model.config;
  const TensorSource& tensors = checkpoint.tensors();
  QUAROT_ASSIGN_OR_RETURN(model.embedding, read_table(tensors, "model.embed_tokens.weight",
                                                      config.vocab, config.hidden));
  QUAROT_ASSIGN_OR_RETURN(model.final_norm,
                          read_vector(tensors, "model.norm.weight", config.hidden));
  if (!config.tied_embeddings) {
    QUAROT_ASSIGN_OR_RETURN(model.lm_head,
                            read_table(tensors, "lm_head.weight", config.vocab, config.hidden));
  }
  QUAROT_ASSIGN_OR_RETURN(model.online, read_online_transforms(checkpoint, config));
  return model;
}

Result<Matrix> load_embeddings(const TensorSource& tensors, const ModelConfig& config,
                               std::span<const Token> tokens) {
  QUAROT_RETURN_IF_ERROR(check_outer(tensors, config));
  Matrix rows(static_cast<int64_t>(tokens.size()), config.hidden);
  for (size_t i = 0; i < tokens.size(); ++i) {
    QUAROT_ASSIGN_OR_RETURN(const Matrix row,
                            tensors.read_rows("model.embed_tokens.weight", tokens[i], 1));
    std::ranges::copy(row.elements(), rows.row(static_cast<int64_t>(i)).begin());
  }
  return rows;
}

Result<Layer> load_layer(const TensorSource& tensors, const ModelConfig& config, int64_t index) {
  const Family& family = *find_family(config.family);
  const std::string prefix = fmt::format("model.layers.{}.", index);
  Layer layer;
  LinearReader reader(tensors, config, index);
  for (const LinearSpec& spec : family.linears) {
    QUAROT_ASSIGN_OR_RETURN(layer[spec.role], reader.read(spec.role));
  }
  const auto norm = [&](std::string_view name, int64_t size) {
    return read_vector(tensors, fmt::format("{}{}.weight", prefix, name), size);
  };
  QUAROT_ASSIGN_OR_RETURN(layer.attention_norm, norm(family.attention_norm, config.hidden));
  QUAROT_ASSIGN_OR_RETURN(layer.ffn_norm, norm(family.ffn_norm, config.hidden));
  if (config.query_key_norm) {
    QUAROT_ASSIGN_OR_RETURN(layer.query_norm, norm("self_attn.q_norm", config.head_dim));
    QUAROT_ASSIGN_OR_RETURN(layer.key_norm, norm("self_attn.k_norm", config.head_dim));
  }
  const int64_t kv_width = config.width(Space::kKey);
  if (tensors.find(prefix + "self_attn.key_center") != nullptr) {
    QUAROT_ASSIGN_OR_RETURN(layer.key_center,
                            read_vector(tensors, prefix + "self_attn.key_center", kv_width));
  }
  if (tensors.find(prefix + "self_attn.value_center") != nullptr) {
    QUAROT_ASSIGN_OR_RETURN(layer.value_center,
                            read_vector(tensors, prefix + "self_attn.value_center", kv_width));
  }
  QUAROT_ASSIGN_OR_RETURN(layer.clips, read_clips(tensors, prefix + "activation_clips"));
  return layer;
}

Result<Model> load_model(const Checkpoint& checkpoint) {
  QUAROT_ASSIGN_OR_RETURN(Model model, load_outer(checkpoint));
  QUAROT_RETURN_IF_ERROR(complete(model, layers_of(checkpoint, model.config)));
  return model;
}

NextLayer layers_of(const Checkpoint& checkpoint, const ModelConfig& config) {
  return [&tensors = checkpoint.tensors(), config, index = int64_t{0}]() mutable {
    return load_layer(tensors, config, index++);
  };
}

NextLayer observed(NextLayer layers, Progress& progress) {
  return [layers = std::move(layers), &progress]() -> Result<Layer> {
    QUAROT_RETURN_IF_ERROR(progress.check());
    QUAROT_ASSIGN_OR_RETURN(Layer layer, layers());
    progress.advance(1);
    return layer;
  };
}

Status complete(Model& model, const NextLayer& next_layer) {
  while (static_cast<int64_t>(model.layers.size()) < model.config.layers) {
    QUAROT_ASSIGN_OR_RETURN(Layer layer, next_layer());
    model.layers.push_back(std::move(layer));
  }
  return {};
}

}  // namespace quarot
