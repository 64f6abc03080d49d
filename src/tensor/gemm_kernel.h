// The inner loop of the float products, one for each width of vector the machine may have.
#pragma once

#include <cstdint>

#include "base/vector_width.h"

namespace quarot {

struct GemmKernel {
  int64_t rows;  // of the tile of y that stays in registers
  int64_t cols;

  // tile [rows][cols] = aᵀ·b for a [inner][rows], b [inner][cols]: every element one chain of fused
  // multiply-adds over the inner dimension, first to last, and so the same bits for all kernels.
  void (*run)(int64_t inner, const float* a, const float* b, float* tile);

  // The same for one row of y, without packing: y[i] = x·wᵢ for 16 rows of w, `stride` apart.
  void (*dots)(int64_t inner, const float* x, const float* w, int64_t stride, float* y);
};
inline constexpr int64_t kDots = 16;

// The width must be available.
GemmKernel gemm_kernel(VectorWidth width);

// What each width's file defines.
namespace avx2 {
GemmKernel gemm_kernel();
}
namespace avx512 {
GemmKernel gemm_kernel();
}

}  // namespace quarot
