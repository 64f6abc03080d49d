// A row of activations on its way into an integer product: where it comes from, the Hadamard that
// turns it, and how it is quantised. One description for all fused operations: RMSNorm + quantise,
// RMSNorm + Hadamard + quantise, SwiGLU + R4 + quantise, cross-head Hadamard + quantise.
#pragma once

#include <cstdint>

namespace quarot {

// H on a vector seen as [blocks][m][2^log2][inner]: the factor on m, Walsh–Hadamard on 2^log2,
// then every element times `scale`.
struct HadamardTask {
  int64_t m = 1;
  int log2 = 0;
  int64_t inner = 1;
  const float* factor = nullptr;  // [m, m] row-major, ±1 or orthonormal; unused where m = 1
  float scale = 1;                // what makes the whole orthonormal: 1/√n where factor is ±1

  int64_t length() const { return (m << log2) * inner; }
};

enum class RowSource { kCopy, kRmsNorm, kSwiGlu };

struct RowTask {
  int64_t rows = 0;
  int64_t width = 0;

  RowSource source = RowSource::kCopy;
  const float* x = nullptr;  // [rows, width]; the gate for SwiGLU
  int64_t x_stride = 0;
  const float* up = nullptr;  // SwiGLU only
  int64_t up_stride = 0;
  const float* gain = nullptr;  // RMSNorm: [width], or null for ones
  float eps = 0;

  const HadamardTask* hadamard = nullptr;  // null: none; its length divides the width

  // Quantised output; with values null the floats themselves go to y.
  int bits = 8;
  float clip = 1;
  int64_t groups = 1;        // of the product's weight: one sum each; width/groups % 16 = 0 if > 1
  int64_t scale_groups = 1;  // 1 or groups
  int8_t* values = nullptr;  // [rows, width], then zeros to a multiple of 64
  int64_t values_stride = 0;
  float* scales = nullptr;  // [rows, scale_groups]
  int32_t* sums = nullptr;  // [rows, groups]
  float* y = nullptr;       // [rows, width]
  int64_t y_stride = 0;
};

}  // namespace quarot
