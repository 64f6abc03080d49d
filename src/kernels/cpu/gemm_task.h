// What the driver of the integer product (gemm.h) hands to an instruction set: plain pointers and
// numbers, so that code compiled for one instruction set needs no inline function of another
// header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quarot::cpu {

inline constexpr int64_t kTileOutputs = 32;

// Quantised activations [rows, inputs].
struct Activations {
  int64_t rows = 0;
  int bits = 8;                    // values lie in −2^(bits−1)…2^(bits−1)−1
  const int8_t* values = nullptr;  // followed by zeros up to padded_inputs(inputs)
  int64_t stride = 0;              // bytes from row to row; see activation_stride
  const float* scales = nullptr;   // [rows, scale_groups]
  int64_t scale_groups = 1;        // 1: one scale a row; else the weight's groups
  const int32_t* sums = nullptr;   // [rows, groups of the weight]: Σ of the values of a group
};

struct GemmTask {
  Activations a;
  const uint8_t* w = nullptr;  // PackedWeight::data
  const float* w_scales = nullptr;
  const float* bias = nullptr;  // or null
  int bits = 4;                 // of the weight
  int64_t outputs = 0;
  int64_t tile_bytes = 0;
  int64_t groups = 1;
  int64_t group_blocks = 0;  // blocks of 8 inputs a group, padding included
  float* y = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;
};

struct GemmRange {
  int64_t first_row, last_row, first_tile, last_tile;
  std::byte* workspace = nullptr;  // Kernels::workspace_bytes of the thread's own
};

using GemmFunction = void (*)(const GemmTask&, const GemmRange&);

}  // namespace quarot::cpu
