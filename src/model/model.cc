#include "model/model.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "model/family.h"

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

Result<std::vector<float>> read_vector(const TensorSource& tensors, const std::string& name,
                                       int64_t size) {
  QUAROT_RETURN_IF_ERROR(check_shape(tensors, name, {size}));
  QUAROT_ASSIGN_OR_RETURN(const Matrix values, tensors.read(name));
  return std::vector<float>(values.elements().begin(), values.elements().end());
}

// A tensor that several linears share is read once for all of them.
class LinearReader {
 public:
  LinearReader(const TensorSource& tensors, const ModelConfig& config, int64_t layer)
      : tensors_(&tensors), config_(&config), layer_(layer) {}

  Result<Linear> read(Role role) {
    const LinearPlace place = place_of(*config_, layer_, role);
    const int64_t in = config_->width(spaces_of(role).input);
    const int64_t out = config_->width(spaces_of(role).output);
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
  Status load(const LinearPlace& place, int64_t in) {
    QUAROT_ASSIGN_OR_RETURN(weight_,
                            read_matrix(*tensors_, place.tensor + ".weight", place.total_rows, in));
    bias_.clear();
    if (tensors_->find(place.tensor + ".bias") != nullptr) {
      QUAROT_ASSIGN_OR_RETURN(bias_,
                              read_vector(*tensors_, place.tensor + ".bias", place.total_rows));
    }
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

}  // namespace

int64_t Model::bytes() const {
  int64_t elements = embedding.size() + lm_head.size();
  for (const Layer& layer : layers) {
    for (const Linear& linear : layer.linears) elements += linear.weight.size();
  }
  return elements * static_cast<int64_t>(sizeof(float));
}

LinearPlace place_of(const ModelConfig& config, int64_t layer, Role role) {
  const Family& family = *find_family(config.family);
  const auto spec = std::ranges::find(family.linears, role, &LinearSpec::role);
  LinearPlace place{fmt::format("model.layers.{}.{}", layer, spec->tensor), 0, 0};
  for (const LinearSpec& other : family.linears) {
    if (other.tensor != spec->tensor) continue;
    if (other.role == role) place.first_row = place.total_rows;
    place.total_rows += config.width(spaces_of(other.role).output);
  }
  return place;
}

Result<Model> load_outer(const Checkpoint& checkpoint) {
  Model model;
  QUAROT_ASSIGN_OR_RETURN(model.config,
                          parse_config(checkpoint.config(), checkpoint.path().string()));
  const ModelConfig& config = model.config;
  const TensorSource& tensors = checkpoint.tensors();
  QUAROT_ASSIGN_OR_RETURN(model.embedding, read_matrix(tensors, "model.embed_tokens.weight",
                                                       config.vocab, config.hidden));
  QUAROT_ASSIGN_OR_RETURN(model.final_norm,
                          read_vector(tensors, "model.norm.weight", config.hidden));
  if (!config.tied_embeddings) {
    QUAROT_ASSIGN_OR_RETURN(model.lm_head,
                            read_matrix(tensors, "lm_head.weight", config.vocab, config.hidden));
  }
  return model;
}

Result<Layer> load_layer(const Checkpoint& checkpoint, const ModelConfig& config, int64_t index) {
  const TensorSource& tensors = checkpoint.tensors();
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
  return layer;
}

Result<Model> load_model(const Checkpoint& checkpoint) {
  QUAROT_ASSIGN_OR_RETURN(Model model, load_outer(checkpoint));
  for (int64_t i = 0; i < model.config.layers; ++i) {
    QUAROT_ASSIGN_OR_RETURN(Layer layer, load_layer(checkpoint, model.config, i));
    model.layers.push_back(std::move(layer));
  }
  return model;
}

}  // namespace quarot
