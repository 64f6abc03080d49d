// What the instruction sets with 256-bit vectors share of the integer product: see gemm_tile.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/gemm_tile.h"

namespace quarot::cpu {
namespace {

struct Ymm {
  using Int = __m256i;
  using Float = __m256;
  static constexpr int kLanes = 8;

  static Int load_int(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const Int*>(p));
  }
  static Int low_nibbles(Int x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
  static Int high_nibbles(Int x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
  static Int broadcast(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
  }
  static Int load_sums(const int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const Int*>(p));
  }
  static void store_sums(int32_t* p, Int x) { _mm256_storeu_si256(reinterpret_cast<Int*>(p), x); }
  static Int zero() { return _mm256_setzero_si256(); }
  static Int splat(int32_t x) { return _mm256_set1_epi32(x); }
  static Float splat(float x) { return _mm256_set1_ps(x); }
  static Int sub(Int x, Int y) { return _mm256_sub_epi32(x, y); }
  static Float to_float(Int x) { return _mm256_cvtepi32_ps(x); }
  static Float mul(Float x, Float y) { return _mm256_mul_ps(x, y); }
  static Float add(Float x, Float y) { return _mm256_add_ps(x, y); }
  static Float load_float(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
  static Int keep(Int x) {
    asm volatile("" : "+x"(x));
    return x;
  }
};

}  // namespace
}  // namespace quarot::cpu
