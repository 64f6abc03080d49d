// The GEMM's meaning in plain C++, for tests: gemm.h's arithmetic on row-major int8 values.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/matrix.h"

namespace quarot::cuda {

inline int32_t reference_sum(std::span<const int8_t> a, std::span<const int8_t> w) {
  int32_t sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += int32_t{a[k]} * w[k];
  return sum;
}

// [m, n] = activations [m, k] · weight [n, k]ᵀ
inline BasicMatrix<int32_t> reference_sums(MatrixView<const int8_t> activations,
                                           MatrixView<const int8_t> weight) {
  BasicMatrix<int32_t> sums(activations.rows(), weight.rows());
  for (int64_t t = 0; t < activations.rows(); ++t) {
    for (int64_t c = 0; c < weight.rows(); ++c) {
      sums(t, c) = reference_sum(activations.row(t), weight.row(c));
    }
  }
  return sums;
}

// One output before it is rounded to its type; null for no bias or no residual. The project
// compiles without contracting a·b + c.
inline float reference_output(int32_t sum, float activation_scale, float weight_scale,
                              const float* bias, const float* residual) {
  float y = static_cast<float>(sum) * activation_scale;
  y = y * weight_scale;
  if (bias != nullptr) y = y + *bias;
  if (residual != nullptr) y = y + *residual;
  return y;
}

}  // namespace quarot::cuda
