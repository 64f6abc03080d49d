// How a row passes between the blocks of a running grid: by words that say themselves whether they
// are complete, so that whoever reads one needs no barrier before it. All are zero until then, and
// are zeroed again when all have read them (block_state.cuh says when).
//
// A sum cell is a product's sum for one channel: how many of its column blocks are in it, times
// 2⁴⁰, plus the sum of their integers. A pair cell has gate's and up's: the count times 2⁵², up's
// sum times 2²⁶, gate's. A float is complete when its word is not zero: +0 passes as −0.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/walsh_row.cuh"
#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda::step {

inline constexpr int kMaxPairColumns = 32768;  // sums of w·a, |w| ≤ 8 and |a| ≤ 128, in 26 bits

__device__ __forceinline__ uint64_t sum_cell(int32_t sum, int blocks) {
  return (static_cast<uint64_t>(blocks) << 40) + static_cast<uint64_t>(int64_t{sum});
}
__device__ __forceinline__ bool is_complete(uint64_t cell, int blocks) {
  return static_cast<int>((cell + (uint64_t{1} << 39)) >> 40) == blocks;
}
__device__ __forceinline__ int32_t sum_of(uint64_t cell) { return static_cast<int32_t>(cell); }

struct PairSums {
  int32_t gate;
  int32_t up;
};
__device__ __forceinline__ uint64_t pair_cell(const PairSums& sums, int blocks) {
  return (static_cast<uint64_t>(blocks) << 52) + (static_cast<uint64_t>(int64_t{sums.up}) << 26) +
         static_cast<uint64_t>(int64_t{sums.gate});
}
__device__ __forceinline__ bool is_complete_pair(uint64_t cell, int blocks) {
  return static_cast<int>((cell + (uint64_t{1} << 51)) >> 52) == blocks;
}
__device__ __forceinline__ PairSums pair_of(uint64_t cell) {
  const auto low = [](uint64_t word) {
    return static_cast<int32_t>(static_cast<uint32_t>(word) << 6) >> 6;
  };
  const int32_t gate = low(cell);
  return {gate, low((cell - static_cast<uint64_t>(int64_t{gate})) >> 26)};
}

__device__ __forceinline__ uint32_t float_word(float x) {
  const uint32_t word = __float_as_uint(x);
  return word == 0 ? 0x80000000U : word;
}
__device__ __forceinline__ bool is_stored(float x) { return __float_as_uint(x) != 0; }
__device__ __forceinline__ void store_float(float* to, float x) {
  store_relaxed(to, float_word(x));
}
__device__ __forceinline__ void store_floats(float* to, float x, float y) {
  store_relaxed(to, float_word(x), float_word(y));
}

// Until the warp's first lane finds its word complete: the others' then are, or are about to be,
// and the wait has cost one sector a turn.
template <typename Word, typename Complete>
__device__ __forceinline__ void await_first(const Word* word, Complete&& complete) {
  if (threadIdx.x % 32 == 0) {
    while (!complete(load_relaxed(word))) {
    }
  }
  __syncwarp();
}

// What a product's sums become.
struct SumRow {
  const uint64_t* cells;
  int blocks;
  float activation_scale;
  const float* scales;
  const float* bias;

  __device__ bool complete(const ulonglong2& two) const {
    return is_complete(two.x, blocks) && is_complete(two.y, blocks);
  }
  __device__ const ulonglong2* words(int channel) const {
    return reinterpret_cast<const ulonglong2*>(cells + channel);
  }
  // Waits for the warp's first lane.
  __device__ void await(int channel) const {
    await_first(words(channel), [&](const ulonglong2& two) { return complete(two); });
  }
  // Eight channels, when they are complete.
  __device__ void read(int channel, float (&y)[kVector]) const {
    RawVector<float> scale;
    scale.load(scales + channel);
    RawVector<float> add{};
    if (bias != nullptr) add.load(bias + channel);
    ulonglong2 two[kVector / 2];
    bool done = false;
    while (!done) {
      done = true;
#pragma unroll
      for (int i = 0; i < kVector / 2; ++i) two[i] = load_relaxed(words(channel) + i);
#pragma unroll
      for (int i = 0; i < kVector / 2; ++i) done = done && complete(two[i]);
    }
    float s[kVector];
    scale.expand(s);
    float b[kVector];
    add.expand(b);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      y[i] = scaled(sum_of(i % 2 == 0 ? two[i / 2].x : two[i / 2].y), activation_scale, s[i]);
      if (bias != nullptr) y[i] = __fadd_rn(y[i], b[i]);
    }
  }
};

// Adds them to the residual stream `x`, [n] in shared memory, when they are complete: each of the
// block's threads to its own elements.
__device__ __forceinline__ void add_sums(const SumRow& sums, int n, float* x) {
#pragma unroll 1
  for (int i = 0;; ++i) {
    const int at = element_of(i);
    if (at - static_cast<int>(threadIdx.x % 32) * kVector >= n) break;  // the whole warp
    sums.await(at);
    if (at >= n) continue;
    float y[kVector];
    sums.read(at, y);
    RawVector<float> raw;
    raw.load(x + at);
    float before[kVector];
    raw.expand(before);
#pragma unroll
    for (int j = 0; j < kVector; ++j) y[j] = __fadd_rn(y[j], before[j]);
    raw.v[0] = {y[0], y[1], y[2], y[3]};
    raw.v[1] = {y[4], y[5], y[6], y[7]};
    raw.store(x + at);
  }
}

// Source of a row kernel: a row in shared memory.
struct SharedRow {
  static constexpr bool kAtOnce = false;
  static constexpr bool kShared = true;
  static constexpr bool has(RowOperation operation) { return operation != RowOperation::kSwiglu; }
  const float* from;

  template <typename In, int kCount>
  __device__ void load(const Rows& args, int base, RawRow<In, kCount>& raw) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      raw.x[i] = {};
      const int at = element_of(base + i);
      if (at < args.n) raw.x[i].load(from + at);
    }
  }
  template <typename In, int kElements>
  __device__ void load_fours(const Rows& /*args*/, int at, int distance,
                             float (&x)[kElements]) const {
#pragma unroll
    for (int j = 0; j < kElements / 4; ++j) load_four(from + at + j * distance, x + 4 * j);
  }
};

// The same: floats as other blocks store them, when they are complete.
struct FloatRow {
  static constexpr bool kAtOnce = true;
  static constexpr bool kShared = false;
  static constexpr bool has(RowOperation operation) { return operation == RowOperation::kPlain; }
  const float* from;

  __device__ const uint4* words(int at) const { return reinterpret_cast<const uint4*>(from + at); }
  __device__ static bool complete(const uint4& v) {
    return v.x != 0 && v.y != 0 && v.z != 0 && v.w != 0;
  }
  template <typename In, int kCount>
  __device__ void load(const Rows& args, int base, RawRow<In, kCount>& raw) const {
    const int first = element_of(base);
    if (first - static_cast<int>(threadIdx.x % 32) * kVector < args.n) {
      await_first(words(first), complete);
    }
    bool done = false;
    while (!done) {
      done = true;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        raw.x[i] = {};
        const int at = element_of(base + i);
        if (at >= args.n) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 v = load_relaxed(words(at) + half);
          done = done && complete(v);
          raw.x[i].v[half] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                              __uint_as_float(v.w)};
        }
      }
    }
  }
  // One by one, `distance` apart.
  template <int kElements>
  __device__ void load_apart(int at, int distance, float (&x)[kElements]) const {
    await_first(from + at, [](uint32_t word) { return word != 0; });
    bool done = false;
    while (!done) {
      done = true;
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        const uint32_t word = load_relaxed(from + at + j * distance);
        done = done && word != 0;
        x[j] = __uint_as_float(word);
      }
    }
  }
  template <typename In, int kElements>
  __device__ void load_fours(const Rows& /*args*/, int at, int distance,
                             float (&x)[kElements]) const {
    await_first(words(at), complete);
    bool done = false;
    while (!done) {
      done = true;
#pragma unroll
      for (int j = 0; j < kElements / 4; ++j) {
        const uint4 v = load_relaxed(words(at + j * distance));
        done = done && complete(v);
        x[4 * j] = __uint_as_float(v.x), x[4 * j + 1] = __uint_as_float(v.y);
        x[4 * j + 2] = __uint_as_float(v.z), x[4 * j + 3] = __uint_as_float(v.w);
      }
    }
  }
};

}  // namespace quarot::cuda::step
