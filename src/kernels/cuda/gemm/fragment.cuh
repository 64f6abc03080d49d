// Packed weights (packed.h) as int8 fragments.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace quarot::cuda {

// Sums of products with unpacked weights are this many bits too far left: the nibbles were masked
// in place, 16 times their value.
inline constexpr int kUnpackShift = 4;

// Operand A of k-step `step` (0 or 1: 32 columns each) of a lane's four words.
template <int step>
__device__ __forceinline__ void unpack(const uint4& words, uint32_t (&a)[4]) {
  constexpr uint32_t kHigh = 0xf0f0f0f0U;
  const uint32_t upper = step == 0 ? words.x : words.z;  // row g
  const uint32_t lower = step == 0 ? words.y : words.w;  // row g + 8
  a[0] = upper << 4 & kHigh;
  a[1] = lower << 4 & kHigh;
  a[2] = upper & kHigh;
  a[3] = lower & kHigh;
}

}  // namespace quarot::cuda
