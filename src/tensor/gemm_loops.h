// The loop behind GemmKernel, for vectors of any width. As in rotation/transform_loops.h, nothing
// but intrinsics may be included here: an inline function compiled for a newer machine could stand
// in for its namesake.
#pragma once

#include "tensor/gemm_kernel.h"

namespace quarot {
namespace {

using Quad __attribute__((vector_size(16))) = float;

inline Quad load_quad(const float* p) {
  Quad v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

// Four rows of four become four columns.
inline void transpose(Quad (&v)[4]) {
  const Quad a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
  const Quad b = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
  const Quad c = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
  const Quad d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
  v[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  v[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  v[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  v[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

template <typename V>
void run_dots(int64_t inner, const float* x, const float* w, int64_t stride, float* y) {
  constexpr int kQuads = kDots / 4;
  Quad sums[kQuads];
  for (int q = 0; q < kQuads; ++q) sums[q] = Quad{};
  int64_t k = 0;
  for (; k + 4 <= inner; k += 4) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuads; ++q) {
      Quad v[4];
      for (int i = 0; i < 4; ++i) v[i] = load_quad(w + (4 * q + i) * stride + k);
      transpose(v);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sums[q] = V::fma(Quad{} + x[k + i], v[i], sums[q]);
    }
  }
  for (; k < inner; ++k) {
    for (int q = 0; q < kQuads; ++q) {
      const float* row = w + 4 * q * stride + k;
      const Quad v = {row[0], row[stride], row[2 * stride], row[3 * stride]};
      sums[q] = V::fma(Quad{} + x[k], v, sums[q]);
    }
  }
  __builtin_memcpy(y, sums, sizeof(sums));
}

// V has load(), store(), broadcast() and fma() of its own lanes, and fma() of a Quad.
template <typename V, int kRows, int kVectors>
void run_tile(int64_t inner, const float* a, const float* b, float* tile) {
  constexpr int kCols = kVectors * V::kLanes;
  typename V::Type sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = V::broadcast(0);
  }
  for (; inner > 0; --inner, a += kRows, b += kCols) {
    typename V::Type row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = V::load(b + v * V::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename V::Type factor = V::broadcast(a[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = V::fma(factor, row[v], sums[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) V::store(tile + r * kCols + v * V::kLanes, sums[r][v]);
  }
}

template <typename V, int kRows, int kVectors>
constexpr GemmKernel kernel_of() {
  return {kRows, kVectors * V::kLanes, run_tile<V, kRows, kVectors>, run_dots<V>};
}

}  // namespace
}  // namespace quarot
