// 16 floats of AVX2, in two halves: see rows_isa.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quarot::cpu {
namespace {

struct F16Avx2 {
  struct F {
    __m256 lo, hi;
  };
  using Sum = __m256i;
  static F splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
  }
  static F add(F x, F y) { return {_mm256_add_ps(x.lo, y.lo), _mm256_add_ps(x.hi, y.hi)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.lo, y.lo), _mm256_sub_ps(x.hi, y.hi)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.lo, y.lo), _mm256_mul_ps(x.hi, y.hi)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.lo, y.lo), _mm256_div_ps(x.hi, y.hi)}; }
  static F max(F x, F y) { return {_mm256_max_ps(x.lo, y.lo), _mm256_max_ps(x.hi, y.hi)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.lo, y.lo), _mm256_min_ps(x.hi, y.hi)}; }
  static F flip(F x, __m256 lo, __m256 hi) {
    return {_mm256_xor_ps(x.lo, lo), _mm256_xor_ps(x.hi, hi)};
  }
  static F negate(F x) { return flip(x, _mm256_set1_ps(-0.0F), _mm256_set1_ps(-0.0F)); }
  static F abs(F x) {
    const __m256 sign = _mm256_set1_ps(-0.0F);
    return {_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi)};
  }
  static F round(F x) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.lo, kMode), _mm256_round_ps(x.hi, kMode)};
  }
  static F not_nan(F x) {
    return {_mm256_and_ps(x.lo, _mm256_cmp_ps(x.lo, x.lo, _CMP_ORD_Q)),
            _mm256_and_ps(x.hi, _mm256_cmp_ps(x.hi, x.hi, _CMP_ORD_Q))};
  }
  static __m256 pow2_half(__m256 n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  static F pow2(F n) { return {pow2_half(n.lo), pow2_half(n.hi)}; }
  static float sqrt1(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

  template <int kStride>
  static __m256 swap_half(__m256 x) {
    if constexpr (kStride == 1) return _mm256_permute_ps(x, 0xB1);
    if constexpr (kStride == 2) return _mm256_permute_ps(x, 0x4E);
    if constexpr (kStride == 4) return _mm256_permute2f128_ps(x, x, 1);
  }
  template <int kStride>
  static F swap(F x) {
    if constexpr (kStride == 8) {
      return {x.hi, x.lo};
    } else {
      return {swap_half<kStride>(x.lo), swap_half<kStride>(x.hi)};
    }
  }
  template <int kStride>
  static F negate_odd(F x) {
    const __m256 all = _mm256_set1_ps(-0.0F);
    const __m256 none = _mm256_setzero_ps();
    if constexpr (kStride == 8) return flip(x, none, all);
    constexpr int kOdd = kStride == 1 ? 0xAA : kStride == 2 ? 0xCC : 0xF0;
    const __m256 odd = _mm256_blend_ps(none, all, kOdd);
    return flip(x, odd, odd);
  }
  static float sum(F x) {
    __m256 s = _mm256_add_ps(x.lo, x.hi);
    s = _mm256_add_ps(s, swap_half<4>(s));
    s = _mm256_add_ps(s, swap_half<2>(s));
    return _mm256_cvtss_f32(_mm256_add_ps(s, swap_half<1>(s)));
  }
  static float largest(F x) {
    __m256 s = _mm256_max_ps(x.lo, x.hi);
    s = _mm256_max_ps(s, swap_half<4>(s));
    s = _mm256_max_ps(s, swap_half<2>(s));
    return _mm256_cvtss_f32(_mm256_max_ps(s, swap_half<1>(s)));
  }

  static constexpr bool kWide = false;
  static constexpr int kQueries = 8;
  struct Words {
    __m256i lo, hi;
  };
  static float first(F x) { return _mm256_cvtss_f32(x.lo); }
  static F fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.lo, y.lo, z.lo), _mm256_fmadd_ps(x.hi, y.hi, z.hi)};
  }
  static F keep_above(F x, F y, float limit) {
    const __m256 l = _mm256_set1_ps(limit);
    return {_mm256_and_ps(x.lo, _mm256_cmp_ps(y.lo, l, _CMP_GT_OQ)),
            _mm256_and_ps(x.hi, _mm256_cmp_ps(y.hi, l, _CMP_GT_OQ))};
  }
  static __m256 bytes_half(const uint8_t* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
  }
  static F load_bytes(const uint8_t* p) { return {bytes_half(p), bytes_half(p + 8)}; }
  static Words load_words(const uint32_t* p) {
    const auto* v = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
  }
  static F as_float(Words x) { return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)}; }
  static Words no_words() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  template <uint32_t kMask>
  static Words bits(Words x) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(kMask));
    return {_mm256_and_si256(x.lo, mask), _mm256_and_si256(x.hi, mask)};
  }
  template <uint32_t kMask>
  static Words flip(Words x) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(kMask));
    return {_mm256_xor_si256(x.lo, mask), _mm256_xor_si256(x.hi, mask)};
  }
  template <int kByte>
  static Words top_byte(Words x) {
    constexpr int k = kByte << 24 | 0x808080;  // an index with its highest bit set gives zero
    const __m256i at = _mm256_broadcastsi128_si256(
        _mm_setr_epi32(k, k + (4 << 24), k + (8 << 24), k + (12 << 24)));
    return {_mm256_shuffle_epi8(x.lo, at), _mm256_shuffle_epi8(x.hi, at)};
  }
  static F to_float(Words x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }
  template <int kShift>
  static Words shr(Words x) {
    return {_mm256_srli_epi32(x.lo, kShift), _mm256_srli_epi32(x.hi, kShift)};
  }
  template <int kShift>
  static Words shl_or(Words x, Words y) {
    return {_mm256_or_si256(x.lo, _mm256_slli_epi32(y.lo, kShift)),
            _mm256_or_si256(x.hi, _mm256_slli_epi32(y.hi, kShift))};
  }
  template <int kBits>
  static F low_bits(Words x) {
    const __m256i mask = _mm256_set1_epi32((1 << kBits) - 1);
    return {_mm256_cvtepi32_ps(_mm256_and_si256(x.lo, mask)),
            _mm256_cvtepi32_ps(_mm256_and_si256(x.hi, mask))};
  }

  static Sum no_sum() { return _mm256_setzero_si256(); }
  static Sum store_bytes(int8_t* p, F x, Sum sum) {
    const __m256i lo = _mm256_cvtps_epi32(x.lo);  // rounds half to even
    const __m256i hi = _mm256_cvtps_epi32(x.hi);
    // Packing works within 128-bit halves: put the quarters in order between the two steps.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xD8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
    return _mm256_add_epi32(sum, _mm256_add_epi32(lo, hi));
  }
  static int32_t total(Sum sum) {
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
    int32_t total = 0;
    for (const int32_t lane : lanes) total += lane;
    return total;
  }
};

}  // namespace
}  // namespace quarot::cpu
