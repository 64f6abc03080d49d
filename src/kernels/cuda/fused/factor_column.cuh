// The product of a known factor with one column, in a thread's registers: float32 additions alone.
// Inputs are taken four at a time: of their eight sums, but for the sign, each output adds one.
#pragma once

#include <utility>

#include "kernels/cuda/fused/sign_factor.h"

namespace quarot::cuda {

template <typename Body, int... kIndices>
__device__ __forceinline__ void unroll(Body&& body, std::integer_sequence<int, kIndices...>) {
  (body.template operator()<kIndices>(), ...);
}
template <int kCount, typename Body>
__device__ __forceinline__ void unroll(Body&& body) {
  unroll(body, std::make_integer_sequence<int, kCount>{});
}

// What is added is a sum, or exactly twice a number: contracted or not, the bits are the same.
template <bool kMinus>
__device__ __forceinline__ float plus(float a, float b) {
  return kMinus ? a - b : a + b;
}

template <int q>
inline constexpr SignTable<q + 1> kSigns = conference_and_one<q>();

// Rows kFrom to kFrom + kCount − 1 of y += S x, or, kSet, of y = S x, for the signs of order q + 1.
template <int q, bool kSet, int kFrom, int kCount>
__device__ __forceinline__ void add_signed(const float (&x)[q + 1], float (&y)[kCount]) {
  constexpr int kOrder = q + 1;
  unroll<(kOrder + 3) / 4>([&]<int kGroup>() {
    constexpr int j = 4 * kGroup;
    constexpr bool kFour = j + 4 <= kOrder;  // else two
    const float low[2] = {__fadd_rn(x[j], x[j + 1]), __fsub_rn(x[j], x[j + 1])};
    float sums[2][2][2];
    if constexpr (kFour) {
      const float high[2] = {__fadd_rn(x[j + 2], x[j + 3]), __fsub_rn(x[j + 2], x[j + 3])};
#pragma unroll
      for (int a = 0; a < 2; ++a) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          sums[a][b][0] = __fadd_rn(low[a], high[b]);
          sums[a][b][1] = __fsub_rn(low[a], high[b]);
        }
      }
    }
    unroll<kCount>([&]<int k>() {
      constexpr int i = kFrom + k;
      // Numbers, as the compiler keeps no table for the device.
      constexpr bool kMinus = kSigns<q>.at[i][j] < 0;
      constexpr bool kSecond = kSigns<q>.at[i][j + 1] < 0;
      float sum = low[kMinus != kSecond];
      if constexpr (kFour) {
        constexpr bool kThird = kSigns<q>.at[i][j + 2] < 0;
        constexpr bool kFourth = kSigns<q>.at[i][j + 3] < 0;
        sum = sums[kMinus != kSecond][kThird != kFourth][kMinus != kThird];
      }
      if constexpr (kSet && kGroup == 0) {
        y[k] = kMinus ? -sum : sum;
      } else {
        y[k] = plus<kMinus>(y[k], sum);
      }
    });
  });
}

// F x comes out in an order of its own: place i is row factor_row<m>(i).
template <int m>
__host__ __device__ constexpr int factor_row(int place) {
  if (is_paley1(m)) return place;
  return place < m / 2 ? 2 * place : 2 * (place - m / 2) + 1;
}

// Places kFirst to kFirst + kCount − 1 of F x; of Paley's second, in one of the halves.
//
// That is C ⊗ [+ +; + −] + I ⊗ [+ −; − −]: of s = x_2j + x_2j+1 and d = x_2j − x_2j+1 the even rows
// are C s + d = (C + I) s − 2 x_2j+1, the odd ones C d − s = (C + I) d − 2 x_2j.
template <int m, int kFirst, int kCount>
__device__ __forceinline__ void multiply_column(const float (&x)[m], float (&y)[kCount]) {
  if constexpr (is_paley1(m)) {
    add_signed<m - 1, true, kFirst>(x, y);
  } else {
    constexpr int kHalf = m / 2;
    constexpr bool kOdd = kFirst >= kHalf;
    constexpr int kFrom = kFirst % kHalf;
    static_assert(kFrom + kCount <= kHalf);
    float sums[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) sums[i] = plus<kOdd>(x[2 * i], x[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) y[i] = -2.0F * x[2 * (kFrom + i) + (kOdd ? 0 : 1)];
    add_signed<kHalf - 1, false, kFrom>(sums, y);
  }
}

}  // namespace quarot::cuda
