// 16 floats of AVX-512: see rows_isa.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quarot::cpu {
namespace {

struct F16Avx512 {
  using F = __m512;
  using Sum = __m512i;
  static F splat(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F x, F y) { return _mm512_add_ps(x, y); }
  static F sub(F x, F y) { return _mm512_sub_ps(x, y); }
  static F mul(F x, F y) { return _mm512_mul_ps(x, y); }
  static F div(F x, F y) { return _mm512_div_ps(x, y); }
  static F max(F x, F y) { return _mm512_max_ps(x, y); }
  static F min(F x, F y) { return _mm512_min_ps(x, y); }
  static F abs(F x) { return _mm512_abs_ps(x); }
  static F negate(F x) { return _mm512_xor_ps(x, splat(-0.0F)); }
  static F round(F x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F not_nan(F x) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x); }
  static F pow2(F n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
  static float sqrt1(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

  template <int kStride>
  static F swap(F x) {
    if constexpr (kStride == 1) return _mm512_permute_ps(x, 0xB1);
    if constexpr (kStride == 2) return _mm512_permute_ps(x, 0x4E);
    if constexpr (kStride == 4) return _mm512_shuffle_f32x4(x, x, 0xB1);
    if constexpr (kStride == 8) return _mm512_shuffle_f32x4(x, x, 0x4E);
  }
  template <int kStride>
  static F negate_odd(F x) {
    constexpr uint32_t kOdd[] = {0, 0xAAAA, 0xCCCC, 0, 0xF0F0, 0, 0, 0, 0xFF00};
    return _mm512_mask_xor_ps(x, static_cast<__mmask16>(kOdd[kStride]), x, splat(-0.0F));
  }
  static float sum(F x) {
    x = add(x, swap<8>(x));
    x = add(x, swap<4>(x));
    x = add(x, swap<2>(x));
    return _mm512_cvtss_f32(add(x, swap<1>(x)));
  }
  static float largest(F x) {
    x = max(x, swap<8>(x));
    x = max(x, swap<4>(x));
    x = max(x, swap<2>(x));
    return _mm512_cvtss_f32(max(x, swap<1>(x)));
  }

  static constexpr bool kWide = true;
  static constexpr int kQueries = 8;
  using Words = __m512i;
  static float first(F x) { return _mm512_cvtss_f32(x); }
  static F fma(F x, F y, F z) { return _mm512_fmadd_ps(x, y, z); }
  static F keep_above(F x, F y, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, splat(limit), _CMP_GT_OQ), x);
  }
  static F load_bytes(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
  }
  static Words load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static F as_float(Words x) { return _mm512_castsi512_ps(x); }
  static Words no_words() { return _mm512_setzero_si512(); }
  template <uint32_t kMask>
  static Words bits(Words x) {
    return _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(kMask)));
  }
  template <uint32_t kMask>
  static Words flip(Words x) {
    return _mm512_xor_si512(x, _mm512_set1_epi32(static_cast<int>(kMask)));
  }
  template <int kByte>
  static Words top_byte(Words x) {
    constexpr int k = kByte << 24 | 0x808080;  // an index with its highest bit set gives zero
    const __m512i at = _mm512_set4_epi32(k + (12 << 24), k + (8 << 24), k + (4 << 24), k);
    return _mm512_shuffle_epi8(x, at);
  }
  static F to_float(Words x) { return _mm512_cvtepi32_ps(x); }
  template <int kShift>
  static Words shr(Words x) {
    return kShift == 0 ? x : _mm512_srli_epi32(x, kShift);
  }
  template <int kShift>
  static Words shl_or(Words x, Words y) {
    return _mm512_or_si512(x, _mm512_slli_epi32(y, kShift));
  }
  template <int kBits>
  static F low_bits(Words x) {
    if constexpr (kBits == 4) {  // a table look-up reads just the low four bits of its index
      return _mm512_permutexvar_ps(
          x, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    } else {
      return _mm512_cvtepi32_ps(_mm512_and_si512(x, _mm512_set1_epi32((1 << kBits) - 1)));
    }
  }

  static Sum no_sum() { return _mm512_setzero_si512(); }
  static Sum store_bytes(int8_t* p, F x, Sum sum) {
    const __m512i q = _mm512_cvtps_epi32(x);  // rounds half to even
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(q));
    return _mm512_add_epi32(sum, q);
  }
  static int32_t total(Sum sum) { return _mm512_reduce_add_epi32(sum); }
};

}  // namespace
}  // namespace quarot::cpu
