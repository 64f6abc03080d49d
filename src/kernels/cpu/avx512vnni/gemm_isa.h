// AVX512-VNNI's part of the integer product: see gemm_tile.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/gemm_tile.h"

namespace quarot::cpu {
namespace {

struct Avx512Vnni {
  using Int = __m512i;
  using Float = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kVectors = 2;
  static constexpr int kRows = 12;  // 24 sums, 2 or 4 weights, 1 activation, 1 mask: 32 registers
  template <int kBits>
  static constexpr int kPlanes = 1;
  static int64_t exact_blocks(int) { return INT64_MAX; }

  template <int kBits>
  static void load(const uint8_t* p, int, Int& lo, Int& hi) {
    lo = _mm512_loadu_si512(p);
    if constexpr (kBits == 4) {
      const Int mask = _mm512_set1_epi8(15);
      hi = _mm512_and_si512(_mm512_srli_epi16(lo, 4), mask);
      lo = _mm512_and_si512(lo, mask);
    } else {
      hi = _mm512_loadu_si512(p + 128);
    }
  }
  static Int broadcast(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }
  static Int dot(Int sum, Int w, Int a) { return _mm512_dpbusd_epi32(sum, w, a); }
  static Int widen(Int total, Int sum, int) { return _mm512_add_epi32(total, sum); }

  static Int load_sums(const int32_t* p) { return _mm512_loadu_si512(p); }
  static void store_sums(int32_t* p, Int x) { _mm512_storeu_si512(p, x); }
  static Int zero() { return _mm512_setzero_si512(); }
  static Int splat(int32_t x) { return _mm512_set1_epi32(x); }
  static Float splat(float x) { return _mm512_set1_ps(x); }
  static Int sub(Int x, Int y) { return _mm512_sub_epi32(x, y); }
  static Float to_float(Int x) { return _mm512_cvtepi32_ps(x); }
  static Float mul(Float x, Float y) { return _mm512_mul_ps(x, y); }
  static Float add(Float x, Float y) { return _mm512_add_ps(x, y); }
  static Float load_float(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
  static Int keep(Int x) {
    asm volatile("" : "+v"(x));
    return x;
  }
};

}  // namespace
}  // namespace quarot::cpu
