// A layer in float32 on the GPU, and the transforms between its linears: what SimulatedCudaBackend
// computes with.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "kernels/row_task.h"
#include "model/model.h"
#include "runtime/cuda/device.h"

namespace quarot::cuda {

// The linears that read one site, one below the other in the order of kRoles.
struct FloatWeight {
  int64_t outputs = 0;
  int64_t inputs = 0;
  DeviceArray<float> values;  // [outputs, inputs]
  DeviceArray<float> bias;    // or empty

  static Result<FloatWeight> upload(const Layer& layer, Space site);
};

// As ChannelOrder.
struct DeviceOrder {
  DeviceArray<int32_t> channels;
  int64_t kept = 0;

  static Result<DeviceOrder> upload(const ChannelOrder& order);
};

struct FloatLayer {
  std::array<FloatWeight, kSites.size()> weights;  // by site_index(), as the orders
  std::array<DeviceOrder, kSites.size()> orders;
  SiteClips clips{};
  SiteBits activation_bits{};
  DeviceArray<float> attention_norm, ffn_norm, query_norm, key_norm, key_center, value_center;

  // Of float weights.
  static Result<FloatLayer> upload(const Layer& layer);
};

// As butterflies and a factor, or as a dense matrix.
struct FloatRotation {
  bool dense = false;
  HadamardTask task;
  DeviceArray<float> matrix;  // the factor, or all of it

  // Null for none.
  static Result<std::unique_ptr<FloatRotation>> upload(const std::optional<Orthogonal>& transform);
};

}  // namespace quarot::cuda
