// The Armv8.2 dot product's part of the integer product: see gemm_tile.h.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "kernels/cpu/gemm_tile.h"

namespace quarot::cpu {
namespace {

// The Armv8.2 dot product multiplies s8 × s8. A nibble is the same number signed or not; 8-bit
// weights u = 16·h + l are two planes of nibbles.
struct NeonDot {
  using Int = int32x4_t;
  using Float = float32x4_t;
  static constexpr int kLanes = 4;
  static constexpr int kVectors = 4;
  static constexpr int kRows = 4;  // 16 sums, 4 or 8 weights, 1 activation, 1 mask: 32 registers
  template <int kBits>
  static constexpr int kPlanes = kBits / 4;
  static int64_t exact_blocks(int) { return INT64_MAX; }

  static Int low_nibbles(uint8x16_t x) { return vreinterpretq_s32_u8(vandq_u8(x, vdupq_n_u8(15))); }
  static Int high_nibbles(uint8x16_t x) { return vreinterpretq_s32_u8(vshrq_n_u8(x, 4)); }
  template <int kBits>
  static void load(const uint8_t* p, int plane, Int& lo, Int& hi) {
    const uint8x16_t first = vld1q_u8(p);
    if constexpr (kBits == 4) {
      lo = low_nibbles(first);
      hi = high_nibbles(first);
    } else {
      const uint8x16_t second = vld1q_u8(p + 128);
      lo = plane == 0 ? low_nibbles(first) : high_nibbles(first);
      hi = plane == 0 ? low_nibbles(second) : high_nibbles(second);
    }
  }
  static Int broadcast(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return vdupq_n_s32(four);
  }
  static Int dot(Int sum, Int w, Int a) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(a));
  }
  static Int widen(Int total, Int sum, int plane) {
    return vaddq_s32(total, plane == 0 ? sum : vshlq_n_s32(sum, 4));
  }
  static Int load_sums(const int32_t* p) { return vld1q_s32(p); }
  static void store_sums(int32_t* p, Int x) { vst1q_s32(p, x); }
  static Int zero() { return vdupq_n_s32(0); }
  static Int splat(int32_t x) { return vdupq_n_s32(x); }
  static Float splat(float x) { return vdupq_n_f32(x); }
  static Int sub(Int x, Int y) { return vsubq_s32(x, y); }
  static Float to_float(Int x) { return vcvtq_f32_s32(x); }
  static Float mul(Float x, Float y) { return vmulq_f32(x, y); }
  static Float add(Float x, Float y) { return vaddq_f32(x, y); }
  static Float load_float(const float* p) { return vld1q_f32(p); }
  static void store(float* p, Float x) { vst1q_f32(p, x); }
  static Int keep(Int x) {
    asm volatile("" : "+w"(x));
    return x;
  }
};

}  // namespace
}  // namespace quarot::cpu
