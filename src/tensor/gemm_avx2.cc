#include <immintrin.h>

#include "tensor/gemm_loops.h"

namespace quarot::avx2 {

namespace {

struct Vector {
  using Type = __m256;
  static constexpr int kLanes = 8;
  static Type load(const float* p) { return _mm256_load_ps(p); }
  static void store(float* p, Type v) { _mm256_store_ps(p, v); }
  static Type broadcast(float x) { return _mm256_set1_ps(x); }
  static Type fma(Type x, Type y, Type z) { return _mm256_fmadd_ps(x, y, z); }
  static Quad fma(Quad x, Quad y, Quad z) { return _mm_fmadd_ps(x, y, z); }
};

}  // namespace

GemmKernel gemm_kernel() { return kernel_of<Vector, 6, 2>(); }

}  // namespace quarot::avx2
