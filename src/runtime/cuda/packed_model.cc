#include "runtime/cuda/packed_model.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/cuda/gemm/packed.h"

namespace quarot::cuda {

namespace {

constexpr int kWeightBits = 4;

int64_t padded(int64_t inputs) {
  return (inputs + kInputMultiple - 1) / kInputMultiple * kInputMultiple;
}

Status check_weights(const Layer& layer) {
  for (const Linear& linear : layer.linears) {
    const bool packable = linear.quantized && linear.quantized->quant.symmetric &&
                          linear.quantized->quant.bits <= kWeightBits &&
                          linear.quantized->scales.cols() == 1;
    if (packable) continue;
    return error(ErrorCode::kUnsupported,
                 "the GPU multiplies packed weights that are symmetric, of at most {} bits, with "
                 "one scale an output; --execution simulated runs any",
                 kWeightBits);
  }
  return {};
}

Status check_precision(const ModelConfig& config, const Precision& precision) {
  const ActivationQuant& a = precision.activations;
  if (!a.enabled() || !a.symmetric || a.group != 0) {
    return error(ErrorCode::kUnsupported,
                 "the GPU multiplies packed weights with symmetric activations of 2 to 8 bits, one "
                 "scale a token; --execution simulated runs any");
  }
  const CacheQuant& k = precision.keys;
  const CacheQuant& v = precision.values;
  const int64_t group = group_size(CacheQuant(), config.head_dim);
  const auto right = [&](const CacheQuant& q) {
    return !q.enabled() || group_size(q, config.head_dim) == group;
  };
  const bool head = config.head_dim % 16 == 0 && (config.head_dim <= 128 || config.head_dim == 256);
  if (!head || config.rope.rotary_dim % 16 != 0 || k.enabled() != v.enabled() || !right(k) ||
      !right(v)) {
    return error(ErrorCode::kUnsupported,
                 "the GPU's packed cache has heads of 16 to 128 channels, a multiple of 16, or 256 "
                 "(here {}, of which {} turn), keys and values both quantised or both not, and one "
                 "scale for {} channels; --execution simulated runs any",
                 config.head_dim, config.rope.rotary_dim, group);
  }
  return {};
}

Result<DeviceArray<float>> upload_floats(const std::vector<float>& host) {
  return DeviceArray<float>::upload(host, "a layer");
}

HadamardTask plain_task(const Orthogonal::Fast& fast, const float* factor) {
  const HadamardPlan& plan = *fast.plan;
  const double scale = 1 / std::sqrt(std::ldexp(1.0, plan.log2));  // the factor is orthonormal
  return {plan.m, plan.log2, fast.inner, factor, static_cast<float>(scale)};
}

Result<PackedWeight> pack_together(Layer& layer, std::initializer_list<Role> roles) {
  PackedWeight weight;
  const size_t site = site_index(spaces_of(*roles.begin()).input);
  weight.clip = layer.clips[site];
  weight.bits = layer.activation_bits[site];
  const int64_t inputs = layer[*roles.begin()].quantized->values.cols();
  bool any_bias = false;
  for (const Role role : roles) {
    weight.outputs += layer[role].quantized->values.rows();
    any_bias = any_bias || !layer[role].bias.empty();
  }
  BasicMatrix<int8_t> values(weight.outputs, inputs);
  std::vector<float> scales;
  std::vector<float> bias;
  for (const Role role : roles) {
    Linear& linear = layer[role];
    const QuantizedWeight& quantized = *linear.quantized;
    std::ranges::copy(quantized.values.elements(), values.row_data(std::ssize(scales)));
    const std::span<const float> row_scales = quantized.scales.elements();
    scales.insert(scales.end(), row_scales.begin(), row_scales.end());
    if (any_bias) {
      linear.bias.resize(static_cast<size_t>(quantized.values.rows()), 0.0F);
      bias.insert(bias.end(), linear.bias.begin(), linear.bias.end());
    }
    linear.quantized.reset();
  }
  const int64_t strip = column_blocks(inputs) * kBlockBytes;
  std::vector<uint8_t> packed(static_cast<size_t>(packed_weight_bytes(weight.outputs, inputs)));
  parallel_for(row_blocks(weight.outputs), 4, [&](int64_t first, int64_t last) {
    const int64_t row = first * kBlockRows;
    pack_weight(values.view().rows(row, std::min(last * kBlockRows, weight.outputs) - row),
                std::span(packed).subspan(static_cast<size_t>(first * strip),
                                          static_cast<size_t>((last - first) * strip)));
  });
  weight.inputs = padded(inputs);
  QUAROT_ASSIGN_OR_RETURN(weight.values, DeviceArray<uint8_t>::upload(packed, "a layer"));
  QUAROT_ASSIGN_OR_RETURN(weight.scales, upload_floats(scales));
  QUAROT_ASSIGN_OR_RETURN(weight.bias, upload_floats(bias));
  return weight;
}

Result<PackedLayer> pack(Layer layer) {
  PackedLayer packed;
  QUAROT_ASSIGN_OR_RETURN(packed.qkv,
                          pack_together(layer, {Role::kQuery, Role::kKey, Role::kValue}));
  QUAROT_ASSIGN_OR_RETURN(packed.output, pack_together(layer, {Role::kOutput}));
  QUAROT_ASSIGN_OR_RETURN(packed.gate_up, pack_together(layer, {Role::kGate, Role::kUp}));
  QUAROT_ASSIGN_OR_RETURN(packed.down, pack_together(layer, {Role::kDown}));
  QUAROT_ASSIGN_OR_RETURN(packed.attention_norm, upload_floats(layer.attention_norm));
  QUAROT_ASSIGN_OR_RETURN(packed.ffn_norm, upload_floats(layer.ffn_norm));
  QUAROT_ASSIGN_OR_RETURN(packed.query_norm, upload_floats(layer.query_norm));
  QUAROT_ASSIGN_OR_RETURN(packed.key_norm, upload_floats(layer.key_norm));
  QUAROT_ASSIGN_OR_RETURN(packed.key_center, upload_floats(layer.key_center));
  QUAROT_ASSIGN_OR_RETURN(packed.value_center, upload_floats(layer.value_center));
  return packed;
}

Result<std::unique_ptr<Rotation>> rotation_of(const std::optional<Orthogonal>& transform,
                                              int64_t width, const char* what) {
  if (!transform || transform->is_identity()) return std::unique_ptr<Rotation>();
  const std::optional<Orthogonal::Fast> fast = transform->fast();
  if (!fast || !fast->signs.empty()) {
    return error(ErrorCode::kUnsupported,
                 "the transform of the {} is no fast Hadamard: such a model runs simulated", what);
  }
  auto rotation = std::make_unique<Rotation>();
  const HadamardPlan& plan = *fast->plan;
  QUAROT_ASSIGN_OR_RETURN(rotation->plain_factor,
                          upload_floats({plan.factor.begin(), plan.factor.end()}));
  rotation->plain = plain_task(*fast, rotation->plain_factor.data());
  RowRotation fused;
  const Result<std::vector<uint32_t>> words = rotation_factor(
      plan.factor, static_cast<int>(plan.m), plan.log2, static_cast<int>(fast->inner), fused);
  if (!words.ok() || fast->blocks != 1 || width % kInputMultiple != 0) return rotation;
  QUAROT_ASSIGN_OR_RETURN(rotation->fused_factor,
                          DeviceArray<uint32_t>::upload(*words, "a rotation"));
  fused.factor = rotation->fused_factor.data();
  rotation->fused = fused;
  return rotation;
}

}  // namespace

Status PackedModel::check(const Model& model, const Precision& precision) {
  for (const Layer& layer : model.layers) QUAROT_RETURN_IF_ERROR(check_weights(layer));
  return check_precision(model.config, precision);
}

int64_t PackedModel::bytes(const ModelConfig& config) {
  int64_t bytes = 8 * config.hidden;  // the norms
  for (const Role role : kRoles) {
    const int64_t outputs = config.width(spaces_of(role).output);
    const int64_t inputs = config.width(spaces_of(role).input);
    bytes += packed_weight_bytes(outputs, inputs) + 8 * outputs;  // scale and bias
  }
  return config.layers * bytes;
}

Result<PackedModel> PackedModel::upload(Model& model, const NextLayer& next_layer) {
  PackedModel packed;
  const ModelConfig& config = model.config;
  const OnlineTransforms& online = model.online;
  QUAROT_ASSIGN_OR_RETURN(packed.norm_output,
                          rotation_of(online.norm_output, config.hidden, "norm outputs"));
  QUAROT_ASSIGN_OR_RETURN(
      packed.heads,
      rotation_of(online.heads, config.width(Space::kAttentionOutput), "attention output"));
  QUAROT_ASSIGN_OR_RETURN(packed.ffn, rotation_of(online.ffn, config.ffn, "FFN"));
  QUAROT_ASSIGN_OR_RETURN(const std::unique_ptr<Rotation> query_key,
                          rotation_of(online.query_key, config.head_dim, "queries and keys"));
  if (query_key) {
    packed.query_key_factor = std::move(query_key->plain_factor);
    packed.query_key = {static_cast<int>(query_key->plain.m), query_key->plain.log2,
                        packed.query_key_factor.data()};
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    const bool have = i < std::ssize(model.layers);
    QUAROT_ASSIGN_OR_RETURN(
        Layer layer,
        have ? Result<Layer>(std::move(model.layers[static_cast<size_t>(i)])) : next_layer());
    QUAROT_RETURN_IF_ERROR(check_weights(layer));
    QUAROT_ASSIGN_OR_RETURN(PackedLayer weights, pack(std::move(layer)));
    packed.layers.push_back(std::move(weights));
  }
  return packed;
}

}  // namespace quarot::cuda
