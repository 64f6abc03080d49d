// The Walsh transform of 256 consecutive elements in the registers of a warp, on tensor cores.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/fused/half_mma.cuh"

namespace quarot::cuda {

// high + low = (a, b) to 22 bits.
__device__ __forceinline__ void split(float a, float b, uint32_t& high, uint32_t& low) {
  high = pack_half2(a, b);
  const float2 rounded = unpack_half2(high);
  low = pack_half2(a - rounded.x, b - rounded.y);
}

// The power of two that brings `top` to [2⁹, 2¹⁰): a sixteenth of a sum over 256, the most that a
// Walsh256 makes of it, then stays below float16's largest.
__device__ __forceinline__ float range_scale(float top) {
  const int exponent = static_cast<int>(__float_as_uint(top) >> 23) - 127;
  return __uint_as_float(static_cast<unsigned>(min(max(127 + 9 - exponent, 1), 253)) << 23);
}

// 1 / range, of a power of two.
__device__ __forceinline__ float inverse_range(float range) {
  return __uint_as_float((254U << 23) - __float_as_uint(range));
}

// A fragments of 16 × 16 Walsh matrices over those bits of the index that are set in a mask, and of
// the identity over the others; times 1/4.
struct alignas(16) WalshFragment {
  uint32_t a[4];
};
constexpr WalshFragment walsh_fragment(unsigned mask, int lane) {
  const auto half = [&](unsigned row, unsigned column) {
    if (((row ^ column) & ~mask) != 0) return 0x0000U;
    return std::popcount(row & column & mask) % 2 == 0 ? 0x3400U : 0xb400U;  // ±0.25
  };
  WalshFragment fragment{};
  for (unsigned reg = 0; reg < 4; ++reg) {
    const unsigned row = lane / 4 + reg % 2 * 8;
    const unsigned column = lane % 4 * 2 + reg / 2 * 8;
    fragment.a[reg] = half(row, column) | half(row, column + 1) << 16;
  }
  return fragment;
}
// For Walsh transforms over 0…8 bits: the two that Walsh256 takes, for each lane.
struct WalshTable {
  WalshFragment fragment[9][2][32];
};
constexpr WalshTable walsh_table() {
  WalshTable table{};
  for (int bits = 0; bits <= 8; ++bits) {
    const auto on = [&](int bit) { return bit < bits ? 1U : 0U; };
    const unsigned first = on(0) | on(3) << 1 | on(4) << 2 | on(1) << 3;
    const unsigned second = on(5) | on(6) << 1 | on(7) << 2 | on(2) << 3;
    for (int lane = 0; lane < 32; ++lane) {
      table.fragment[bits][0][lane] = walsh_fragment(first, lane);
      table.fragment[bits][1][lane] = walsh_fragment(second, lane);
    }
  }
  return table;
}
static __device__ const WalshTable kWalshTable = walsh_table();

// x ← Walsh over the low `bits` of the 8 index bits e0…e7, unscaled but for 1/16, of x · range;
// lane (g, t) holds e0, e1, e2 in registers, e3, e4 = t, e5, e6, e7 = g: element 8 · lane + i is
// x[i]. Two products with 16 × 16 matrices, the data as operand B: the first takes bits (e0, e3,
// e4, e1) and its result comes with them on (g, row half) and g's bits on (column pair, t), so that
// the second, over (e5, e6, e7, e2), ends where the first began.
struct Walsh256 {
  uint32_t first[4];
  uint32_t second[4];

  __device__ explicit Walsh256(int bits) {
    load(first, kWalshTable.fragment[bits][0]);
    load(second, kWalshTable.fragment[bits][1]);
  }
  __device__ static void load(uint32_t (&a)[4], const WalshFragment (&lanes)[32]) {
    const uint4 v = *reinterpret_cast<const uint4*>(lanes[threadIdx.x % 32].a);
    a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
  }
  // d = a · x; kExact: x is float16 already.
  template <bool kExact>
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], float x0, float x1,
                                  float x2, float x3) {
    if constexpr (kExact) {
      mma_f16_first(d, a, pack_half2(x0, x1), pack_half2(x2, x3));
    } else {
      uint32_t high[2];
      uint32_t low[2];
      split(x0, x1, high[0], low[0]);
      split(x2, x3, high[1], low[1]);
      mma_f16_first(d, a, high[0], high[1]);
      mma_f16(d, a, low[0], low[1]);
    }
  }
  template <bool kExact>
  __device__ void apply(float (&x)[8], float range) const {
#pragma unroll
    for (float& e : x) e *= range;
    float d[2][4];
    multiply<kExact>(d[0], first, x[0], x[1], x[2], x[3]);
    multiply<kExact>(d[1], first, x[4], x[5], x[6], x[7]);
#pragma unroll
    for (int e1 = 0; e1 < 2; ++e1) {
      float c[4];
      multiply<false>(c, second, d[0][2 * e1], d[0][2 * e1 + 1], d[1][2 * e1], d[1][2 * e1 + 1]);
      x[2 * e1] = c[0];
      x[2 * e1 + 1] = c[1];
      x[4 + 2 * e1] = c[2];
      x[5 + 2 * e1] = c[3];
    }
  }
};

}  // namespace quarot::cuda
