// The rotation of a row across heads, which comes as floats of the workspace, where the row
// kernels' way takes too long for a block alone: bits are theirs.
#pragma once

#include "kernels/cuda/fused/walsh_row.cuh"
#include "kernels/cuda/step/cells.cuh"
#include "kernels/cuda/step/feed.cuh"

namespace quarot::cuda::step {

// A Walsh transform across heads: walsh_row with a quarter of its elements to a thread, and so
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
