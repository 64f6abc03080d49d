// Rotations of a row that comes as floats of the workspace, where the row kernels' way takes too
// long for a block alone: bits are theirs.
#pragma once

#include <algorithm>

#include "kernels/cuda/fused/rotate.cuh"
#include "kernels/cuda/step/cells.cuh"
#include "kernels/cuda/step/feed.cuh"

namespace quarot::cuda::step {

// ---- By a dense factor: some blocks turn the row, each some tiles of the factor's product, and
// all quantise what they made.

// Tiles a block takes before the next one has any: one to each of a multiprocessor's tensor cores.
inline constexpr int kTurnWarps = 4;
inline constexpr int kTurnVectors = 4;  // a thread has, at most
constexpr int turned_tiles(const RowRotation& r) { return (r.m + 15) / 16 * (r.columns / 16); }
inline int turning_blocks(const RowRotation& r, int blocks) {
  return std::min(blocks, (turned_tiles(r) + kTurnWarps - 1) / kTurnWarps);
}
// The row as the factor gives it and, behind it, the power of two it was scaled by.
constexpr int64_t turned_floats(int n) { return n + 1; }

// By a block that is one of `blocks`.
template <int kVectors>
__device__ __forceinline__ void turn_row(const Rows& rows, const FloatRow& source, uint8_t* shared,
                                         int blocks, float* turned) {
  const float range = fill_planes<float, false, kVectors>(rows, source, shared, nullptr);
  const auto block = static_cast<int>(blockIdx.x);
  if (block == 0 && threadIdx.x == 0) store_float(turned + rows.n, range);
  const RowRotation& rotation = rows.rotation;
  const int lane = threadIdx.x % 32;
  const WarpTiles<1, 1> tiles(rotation, static_cast<int>(threadIdx.x) / 32 * blocks + block);
  if (tiles.first_m >= tiles.tiles_m) return;
  float y[1][1][2][4] = {};
  tiles.multiply(rotation, Planes<false>(shared, rotation), y);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float(&e)[4] = y[0][0][half];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int m = tiles.first_m * 16 + lane / 4 + 8 * i;
      if (m >= rotation.m) continue;
      const int column = tiles.first_n * 16 + half * 8 + lane % 4 * 2;
      store_floats(turned + m * rotation.columns + column, e[2 * i], e[2 * i + 1]);
    }
  }
}

// What turn_row made, quantised into `codes`. Returns the scale.
template <int kVectors>
__device__ __forceinline__ float quantize_turned(const Rows& rows, const float* turned,
                                                 uint8_t* codes) {
  __shared__ float slots[kMaxRowThreads / 32];
  float x[kVectors][kVector];
  load_row<float>(rows, FloatRow{turned}, x, nullptr);
  float range = 0;
  while (range == 0) range = __uint_as_float(load_relaxed(turned + rows.n));
  float top = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) top = fmaxf(top, largest(x[i]));
  top = largest_of_block(slots, top);
  const RowQuantizer quantizer(rows.quant, plane_unit(rows.rotation, range), top);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = element_of(i);
    if (at >= rows.n) continue;
    *reinterpret_cast<uint2*>(codes + at) = {
        quantizer.quantize_rounded(x[i][0], x[i][1], x[i][2], x[i][3]),
        quantizer.quantize_rounded(x[i][4], x[i][5], x[i][6], x[i][7])};
  }
  return quantizer.scale();
}

// ---- A Walsh transform across heads: walsh_row with a quarter of its elements to a thread, and so
// no place to change but lanes.
struct AcrossHeads {
  static constexpr int kLog2 = 12;
  static constexpr int kElements = (1 << kLog2) / kThreads;
  static constexpr int kHigh = kLog2 - 3;  // the lowest of the three bits that a thread has whole

  // Index bits `first` to kHigh − 1 are lane bits, the last ones.
  static bool fits(const Rows& rows) {
    const RowRotation& r = rows.rotation;
    return r.log2 == kLog2 && r.first >= kHigh - 5 && r.first < kHigh && r.signs == nullptr &&
           rows.operation == RowOperation::kPlain;
  }
  __device__ static float make(const Rows& rows, const FloatRow& source, uint8_t* codes) {
    __shared__ float slots[kMaxRowThreads / 32];
    const int first = rows.rotation.first;
    const int own = kHigh - first;  // lane bits that are transformed
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int low = lane & ((1 << (5 - own)) - 1);
    const int base = low | warp << (5 - own) | lane >> (5 - own) << first;
    float x[kElements];
    source.load_apart(base, 1 << kHigh, x);
    butterflies<1>(x);
    butterflies<2>(x);
    butterflies<4>(x);
    for (int bit = 5 - own; bit < 5; ++bit) lane_butterflies(x, 1U << bit);
    const float top = largest_of_block(slots, largest(x));
    const RowQuantizer quantizer(rows.quant, rows.rotation.scale, top);
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      const uint32_t four = quantizer.quantize_rounded(x[i], x[i + 1], x[i + 2], x[i + 3]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        codes[base + ((i + j) << kHigh)] = static_cast<uint8_t>(four >> 8 * j);
      }
    }
    return quantizer.scale();
  }
};

}  // namespace quarot::cuda::step
