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

template <bool kMinus>
__device__ __forceinline__ float plus(float a, float b) {
  return kMinus ? __fsub_rn(a, b) : __fadd_rn(a, b);
}

template <int q>
inline constexpr SignTable<q + 1> kSigns = paley<q>();

// Rows kFirst to kFirst + kCount − 1 of y = F x.
template <int m, int kFirst, int kCount>
__device__ __forceinline__ void multiply_column(const float (&x)[m], float (&y)[kCount]) {
  unroll<m / 4>([&]<int kGroup>() {
    constexpr int j = 4 * kGroup;
    const float low[2] = {__fadd_rn(x[j], x[j + 1]), __fsub_rn(x[j], x[j + 1])};
    const float high[2] = {__fadd_rn(x[j + 2], x[j + 3]), __fsub_rn(x[j + 2], x[j + 3])};
    float sums[2][2][2];
#pragma unroll
    for (int a = 0; a < 2; ++a) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        sums[a][b][0] = __fadd_rn(low[a], high[b]);
        sums[a][b][1] = __fsub_rn(low[a], high[b]);
      }
    }
    unroll<kCount>([&]<int k>() {
      constexpr int i = kFirst + k;
      // Numbers, as the compiler keeps no table for the device.
      constexpr bool kMinus = kSigns<m - 1>.at[i][j] < 0;
      constexpr bool kSecond = kSigns<m - 1>.at[i][j + 1] < 0;
      constexpr bool kThird = kSigns<m - 1>.at[i][j + 2] < 0;
      constexpr bool kFourth = kSigns<m - 1>.at[i][j + 3] < 0;
      const float sum = sums[kMinus != kSecond][kThird != kFourth][kMinus != kThird];
      if constexpr (kGroup == 0) {
        y[k] = kMinus ? -sum : sum;
      } else {
        y[k] = plus<kMinus>(y[k], sum);
      }
    });
  });
}

}  // namespace quarot::cuda
