// A model's integers and transforms on the GPU, as the kernels take them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/fused/fused.h"
#include "kernels/cuda/fused/heads.h"
#include "kernels/row_task.h"
#include "model/model.h"
#include "runtime/cuda/device.h"
#include "runtime/precision.h"

namespace quarot::cuda {

inline constexpr int64_t kInputMultiple = 16;  // of a product's inputs

// Linears that read the same rows, one below the other: a single product computes them all.
struct PackedWeight {
  int64_t outputs = 0;
  int64_t inputs = 0;  // padded to what the product takes
  float clip = 0;      // of these, and their bits; 0: the recipe's
  int bits = 0;
  DeviceArray<uint8_t> values;
  DeviceArray<float> scales;
  DeviceArray<float> bias;  // or empty
};
struct PackedLayer {
  PackedWeight qkv, output, gate_up, down;
  DeviceArray<float> attention_norm, ffn_norm, query_norm, key_norm, key_center, value_center;
};
// A transform before a quantiser: as the fused kernels take it, or as the plain ones do where
// those have no such shape.
struct Rotation {
  std::optional<RowRotation> fused;
  DeviceArray<uint32_t> fused_factor;
  HadamardTask plain;
  DeviceArray<float> plain_factor;
};

struct PackedModel {
  std::vector<PackedLayer> layers;
  std::unique_ptr<Rotation> norm_output, heads, ffn;  // null: none
  HeadRotation query_key;
  DeviceArray<float> query_key_factor;

  // kUnsupported, saying what, for what the kernels have no form for.
  static Status check(const Model& model, const Precision& precision);
  static int64_t bytes(const ModelConfig& config);  // what upload() will take
  // Takes the layers out of the model, those that it lacks from `next_layer`.
  static Result<PackedModel> upload(Model& model, const NextLayer& next_layer);
};

}  // namespace quarot::cuda
