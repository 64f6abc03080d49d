#include "runtime/cuda/float_layer.h"

#include <cmath>

namespace quarot::cuda {

namespace {

Result<DeviceArray<float>> upload_floats(const std::vector<float>& host) {
  return DeviceArray<float>::upload(host, "a layer");
}

}  // namespace

Result<FloatWeight> FloatWeight::upload(const Layer& layer, Space site) {
  FloatWeight weight;
  weight.inputs = layer[first_reader(site)].weight.cols();
  std::vector<float> bias;
  bool any_bias = false;
  for (const Role role : kRoles) {
    if (spaces_of(role).input != site) continue;
    const Linear& linear = layer[role];
    weight.outputs += linear.weight.rows();
    any_bias = any_bias || !linear.bias.empty();
    bias.insert(bias.end(), linear.bias.begin(), linear.bias.end());
    bias.resize(static_cast<size_t>(weight.outputs), 0.0F);
  }
  if (!any_bias) bias.clear();
  QUAROT_ASSIGN_OR_RETURN(weight.bias, upload_floats(bias));
  QUAROT_ASSIGN_OR_RETURN(weight.values,
                          DeviceArray<float>::make(weight.outputs * weight.inputs, "a layer"));
  float* to = weight.values.data();
  for (const Role role : kRoles) {
    if (spaces_of(role).input != site) continue;
    const std::span<const float> from = layer[role].weight.elements();
    QUAROT_RETURN_IF_ERROR(
        check(cudaMemcpy(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice), "a layer"));
    to += from.size();
  }
  return weight;
}

Result<DeviceOrder> DeviceOrder::upload(const ChannelOrder& order) {
  DeviceOrder uploaded;
  uploaded.kept = order.kept;
  QUAROT_ASSIGN_OR_RETURN(uploaded.channels,
                          DeviceArray<int32_t>::upload(order.channels, "kept channels"));
  return uploaded;
}

Result<FloatLayer> FloatLayer::upload(const Layer& layer) {
  FloatLayer uploaded;
  for (const Space site : kSites) {
    const size_t i = site_index(site);
    QUAROT_ASSIGN_OR_RETURN(uploaded.weights[i], FloatWeight::upload(layer, site));
    QUAROT_ASSIGN_OR_RETURN(uploaded.orders[i], DeviceOrder::upload(layer.orders[i]));
  }
  uploaded.clips = layer.clips;
  uploaded.activation_bits = layer.activation_bits;
  QUAROT_ASSIGN_OR_RETURN(uploaded.attention_norm, upload_floats(layer.attention_norm));
  QUAROT_ASSIGN_OR_RETURN(uploaded.ffn_norm, upload_floats(layer.ffn_norm));
  QUAROT_ASSIGN_OR_RETURN(uploaded.query_norm, upload_floats(layer.query_norm));
  QUAROT_ASSIGN_OR_RETURN(uploaded.key_norm, upload_floats(layer.key_norm));
  QUAROT_ASSIGN_OR_RETURN(uploaded.key_center, upload_floats(layer.key_center));
  QUAROT_ASSIGN_OR_RETURN(uploaded.value_center, upload_floats(layer.value_center));
  return uploaded;
}

Result<std::unique_ptr<FloatRotation>> FloatRotation::upload(
    const std::optional<Orthogonal>& transform) {
  if (!transform || transform->is_identity()) return std::unique_ptr<FloatRotation>();
  auto rotation = std::make_unique<FloatRotation>();
  const std::optional<Orthogonal::Fast> fast = transform->fast();
  rotation->dense = !fast || !fast->signs.empty();
  std::vector<float> matrix;
  if (rotation->dense) {
    const BasicMatrix<double> all = transform->matrix();
    matrix.assign(all.elements().begin(), all.elements().end());
  } else {
    matrix.assign(fast->plan->factor.begin(), fast->plan->factor.end());
  }
  QUAROT_ASSIGN_OR_RETURN(rotation->matrix, upload_floats(matrix));
  if (!rotation->dense) {
    const HadamardPlan& plan = *fast->plan;
    rotation->task = {plan.m, plan.log2, fast->inner, rotation->matrix.data(),
                      static_cast<float>(1 / std::sqrt(std::ldexp(1.0, plan.log2)))};
  }
  return rotation;
}

}  // namespace quarot::cuda
