// float32 numbers as sums of two float16.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/half_mma.cuh"

namespace quarot::cuda {

// high + low = (a, b) to 22 bits.
__device__ __forceinline__ void split(float a, float b, uint32_t& high, uint32_t& low) {
  high = pack_half2(a, b);
  const float2 rounded = unpack_half2(high);
  low = pack_half2(a - rounded.x, b - rounded.y);
}

// The power of two that brings `top` to [2¹⁴, 2¹⁵), within float16's range and high in it.
__device__ __forceinline__ float range_scale(float top) {
  const int exponent = static_cast<int>(__float_as_uint(top) >> 23) - 127;
  return __uint_as_float(static_cast<unsigned>(min(max(127 + 14 - exponent, 1), 253)) << 23);
}

// 1 / range, of a power of two.
__device__ __forceinline__ float inverse_range(float range) {
  return __uint_as_float((254U << 23) - __float_as_uint(range));
}

}  // namespace quarot::cuda
