// What the parts of factor_stream.cu share: how a block's warps and shared memory are shared out.
#pragma once

#include "kernels/cuda/fused/fused.h"
#include "kernels/cuda/fused/rotate.cuh"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda::factor {

inline constexpr int kMostThreads = 1024;
inline constexpr int kFewThreads = 768;
inline constexpr int kMostWarps = kMostThreads / 32;
inline constexpr int kMostGroups = 15;  // one named barrier each
inline constexpr int kWgmmaRows = 64;   // a warpgroup's by wgmma
// What 16 rows of a panel add to a descriptor.
inline constexpr int kStepDescriptor = 16 * 128 / 16;
inline constexpr int kNarrow = 32;        // columns
inline constexpr int kPanelColumns = 64;  // 128 bytes of float16: what a swizzle repeats in
inline constexpr int kElements = 32;      // of a lane
inline constexpr int kFours = kElements / 4;

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

struct Plan {
  Rows rows;
  int warps = 0;  // of a group
  int groups = 0;
  int pieces = 0;  // of a row
  int steps = 0;   // of 16 of the factor's columns
  int slots = 0;
  int shared = 0;         // bytes
  int staged_factor = 0;  // of them at the end, for fragments of two terms
  // Not known to the compiler: `and` one constant, then `or` another, would be two instructions.
  uint32_t ones = kOnes;

  int threads() const { return 32 * groups * warps; }
  __host__ __device__ int panels() const {
    return (rows.rotation.columns + kPanelColumns - 1) / kPanelColumns;
  }
  __host__ __device__ int row_bytes() const {
    return rows.rotation.columns < kPanelColumns ? 64 : 128;
  }
  __host__ __device__ int panel_bytes() const { return steps * 16 * row_bytes(); }
  __host__ __device__ int plane_bytes() const { return panels() * panel_bytes(); }
};

// Rows of the planes past the factor's.
__device__ __forceinline__ void clear_padding(const Plan& plan, uint8_t* planes) {
  const int from = plan.rows.rotation.m * plan.row_bytes();
  const int each = (plan.panel_bytes() - from) / 16;
  for (int i = threadIdx.x; i < plan.groups * 2 * plan.panels() * each; i += blockDim.x) {
    *reinterpret_cast<uint4*>(planes + i / each * plan.panel_bytes() + from + i % each * 16) = {};
  }
}

// In four chains: few warps are there to wait for one another's instructions.
__device__ __forceinline__ float largest_of(const float (&x)[kElements]) {
  float tops[4] = {};
#pragma unroll
  for (int i = 0; i < kElements; ++i) tops[i % 4] = fmaxf(tops[i % 4], fabsf(x[i]));
  return fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
}

// Which group this warp is of, and which of its warps.
struct Member {
  int group;
  int warp;
  int warps;

  __device__ explicit Member(const Plan& plan) : warps(plan.warps) {
    const auto of_block = static_cast<int>(__reduce_max_sync(~0U, threadIdx.x / 32));
    group = of_block / warps;
    warp = of_block % warps;
  }
  __device__ void sync() const { barrier_sync(1 + group, warps * 32); }
  // Of the group, of what is not negative; one barrier. Each use has its own slots, a float a warp
  // of the block.
  __device__ __forceinline__ float largest(float* slots, float top) const {
    const int lane = threadIdx.x % 32;
    slots += group * warps;
    top = __uint_as_float(__reduce_max_sync(~0U, __float_as_uint(top)));
    if (lane == 0) slots[warp] = top;
    sync();
    const float other = lane < warps ? slots[lane] : 0;
    return __uint_as_float(__reduce_max_sync(~0U, __float_as_uint(other)));
  }
};

// The lane, without the compiler's knowing that it is the same each time: what follows from it is
// worked out again for each row, not kept in registers.
__device__ __forceinline__ unsigned forgotten_lane() {
  unsigned lane = threadIdx.x;
  asm volatile("" : "+r"(lane));
  return lane % 32;
}

// Where a chunk of 16 bytes of a row lies in a panel of a plane, [row][64 columns] of float16 or,
// if there are no more, [row][32 columns]: swizzled as wgmma wants it.
__device__ __forceinline__ unsigned chunk_of(unsigned row, unsigned chunk) {
  return (chunk ^ row % 8) * 16;
}
__device__ __forceinline__ unsigned narrow_chunk_of(unsigned row, unsigned chunk) {
  return (chunk ^ row / 2 % 4) * 16;
}

}  // namespace quarot::cuda::factor
