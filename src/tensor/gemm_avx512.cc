#include <immintrin.h>

#include "tensor/gemm_loops.h"

namespace quarot::avx512 {

namespace {

struct Vector {
  using Type = __m512;
  static constexpr int kLanes = 16;
  static Type load(const float* p) { return _mm512_load_ps(p); }
  static void store(float* p, Type v) { _mm512_store_ps(p, v); }
  static Type broadcast(float x) { return _mm512_set1_ps(x); }
  static Type fma(Type x, Type y, Type z) { return _mm512_fmadd_ps(x, y, z); }
  static Quad fma(Quad x, Quad y, Quad z) { return _mm_fmadd_ps(x, y, z); }
};

}  // namespace

GemmKernel gemm_kernel() { return kernel_of<Vector, 12, 2>(); }

}  // namespace quarot::avx512
