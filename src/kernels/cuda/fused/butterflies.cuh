// The Walsh transform's additions. Each function does one index bit; done from the lowest bit to
// the highest, the result's bits are the same however the elements are shared out.
#pragma once

#include <cstdint>

namespace quarot::cuda {

// Of a thread's elements kStride apart.
template <int kStride, int kCount>
__device__ __forceinline__ void butterflies(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if ((i & kStride) != 0) continue;
    const float sum = __fadd_rn(x[i], x[i + kStride]);
    x[i + kStride] = __fsub_rn(x[i], x[i + kStride]);
    x[i] = sum;
  }
}

// Of lanes that differ in the bit `mask`.
template <int kCount>
__device__ __forceinline__ void lane_butterflies(float (&x)[kCount], unsigned mask) {
  const float sign = (threadIdx.x & mask) != 0 ? -1.0F : 1.0F;
#pragma unroll
  for (float& e : x) e = __fmaf_rn(e, sign, __shfl_xor_sync(~0U, e, mask));
}

}  // namespace quarot::cuda
