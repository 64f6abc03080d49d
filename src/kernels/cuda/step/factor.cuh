// Rotation of a row by a dense factor, by each block for itself: factor_stream.cu's way, for one
// row that comes as floats of the workspace. Bits are those of the row kernels.
//
// Loops are kept rolled: of code that is run once a layer, the way of the instructions to the
// multiprocessor costs more than the loop.
#pragma once

#include "kernels/cuda/fused/factor_tiles.cuh"
#include "kernels/cuda/step/cells.cuh"
#include "kernels/cuda/step/feed.cuh"

namespace quarot::cuda::step {

// Columns of a panel of the planes lie in the order that gives lane 4i + t, which has columns 2t
// and 2t + 1 of every 8, sixteen neighbours: column 16t + 2j + e is the planes' 8j + 2t + e.
class FactorRow {
  static constexpr int kVectors = 4;  // of a thread, at most
  static constexpr int kAlignment = 1024;
  using Tile = factor::WgmmaTile<kThreads>;

 public:
  static bool fits(const Rows& rows) {
    const RowRotation& r = rows.rotation;
    return r.log2 == 0 && r.walsh_bits >= 6 && r.walsh_bits <= 8 && r.terms == 1 &&
           factor::ceil_div(r.m, factor::kWgmmaRows) * plan_of(rows).panels() <= kWarps / 4 &&
           rows.n <= kVectors * kVector * kThreads && rows.operation == RowOperation::kPlain;
  }
  static int scratch_bytes(const Rows& rows) {
    return kAlignment + 2 * plan_of(rows).plane_bytes();
  }

  // Codes into `codes`; returns their scale.
  __device__ static __forceinline__ float make(const Rows& rows, const FloatRow& source,
                                               uint8_t* scratch, uint8_t* codes) {
    __shared__ float slots[2][kWarps];
    uint8_t* memory = scratch + (-shared_address(scratch) & (kAlignment - 1));
    const factor::Plan plan = plan_of(rows);
    const SwizzledRow planes(plan, memory);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (warp < 2 * plan.panels()) clear_padding(plan, memory + warp * plan.panel_bytes());
    const float range = range_scale(largest_of_block(slots[0], turn(rows, source, planes)));
#pragma unroll 1
    for (int at = element_of(0); at < rows.n; at += kThreads * kVector) planes.split(at, range);
    wgmma_proxy_fence();
    __syncthreads();

    const Tile tile(plan, warp);
    const bool some = tile.has_rows(plan);
    float y[Tile::kSums] = {};
    if (tile.first - warp % 4 * 16 < rows.rotation.m) {  // the warpgroup has some
      tile.multiply(plan, rows.rotation.factor, memory, threadIdx.x % 32, y);
    }
    const float top = largest_of_block(slots[1], some ? factor::largest_of(y) : 0);
    const RowQuantizer quantizer(rows.quant, plane_unit(rows.rotation, range), top);
    if (some) store(rows.rotation, tile, quantizer, y, codes);
    return quantizer.scale();
  }

 private:
  // The planes of high and of low terms, by the eight neighbours that a thread has of the row.
  struct SwizzledRow {
    uint8_t* planes;
    int plane_bytes;
    int panel_bytes;
    int log2;  // of the columns

    __device__ SwizzledRow(const factor::Plan& plan, uint8_t* memory)
        : planes(memory),
          plane_bytes(plan.plane_bytes()),
          panel_bytes(plan.panel_bytes()),
          log2(plan.rows.rotation.walsh_bits) {}
    // pair(i, place in the high plane) for each pair.
    template <typename Pair>
    __device__ __forceinline__ void for_pairs(int at, Pair&& pair) const {
      const int row = at >> log2;
      const int column = at & (factor::kPanelColumns - 1);
      const int panel = (at & ((1 << log2) - 1)) / factor::kPanelColumns;
      uint8_t* to = planes + panel * panel_bytes + row * 128 + column / 16 * 4;
#pragma unroll
      for (int i = 0; i < kVector / 2; ++i) {
        pair(i, to + factor::chunk_of(row, column % 16 / 2 + i));
      }
    }
    // Until all know the row's range, floats wait where they will be: their upper halves in the
    // one plane, their lower halves in the other.
    __device__ __forceinline__ void keep(int at, const float (&x)[kVector]) const {
      for_pairs(at, [&](int i, uint8_t* place) {
        const uint32_t a = __float_as_uint(x[2 * i]);
        const uint32_t b = __float_as_uint(x[2 * i + 1]);
        *reinterpret_cast<uint32_t*>(place) = __byte_perm(a, b, 0x7632);
        *reinterpret_cast<uint32_t*>(place + plane_bytes) = __byte_perm(a, b, 0x5410);
      });
    }
    __device__ __forceinline__ void split(int at, float range) const {
      for_pairs(at, [&](int /*i*/, uint8_t* place) {
        auto& high = *reinterpret_cast<uint32_t*>(place);
        auto& low = *reinterpret_cast<uint32_t*>(place + plane_bytes);
        const float a = __uint_as_float(__byte_perm(low, high, 0x5410));
        const float b = __uint_as_float(__byte_perm(low, high, 0x7632));
        cuda::split(a * range, b * range, high, low);
      });
    }
  };

  __host__ __device__ static factor::Plan plan_of(const Rows& rows) {
    factor::Plan plan{rows};
    plan.warps = kWarps;
    plan.steps = factor::ceil_div(rows.rotation.m, 16);
    return plan;
  }
  // By a warp, of a panel.
  __device__ static void clear_padding(const factor::Plan& plan, uint8_t* panel) {
    int at = plan.rows.rotation.m * plan.row_bytes() + static_cast<int>(threadIdx.x) % 32 * 16;
#pragma unroll 1
    for (; at < plan.panel_bytes(); at += 32 * 16) *reinterpret_cast<uint4*>(panel + at) = {};
  }
  // As walsh_256 does it.
  __device__ static __forceinline__ void walsh(int bits, float (&x)[kVector]) {
    butterflies<1>(x);
    butterflies<2>(x);
#pragma unroll 1
    for (unsigned lanes = 4; lanes < 1U << (bits - 3); lanes *= 2) lane_butterflies(x, lanes);
    butterflies<4>(x);
#pragma unroll 1
    for (unsigned lanes = 1; lanes < 4; lanes *= 2) lane_butterflies(x, lanes);
  }
  // The row up to where the factor comes, into the planes. Returns this thread's largest magnitude.
  __device__ static __forceinline__ float turn(const Rows& rows, const FloatRow& source,
                                               const SwizzledRow& planes) {
    float x[kVectors][kVector];
    load_row<float>(rows, source, x, nullptr);
    float top = 0;
#pragma unroll 1
    for (int at = element_of(0); at - static_cast<int>(threadIdx.x % 32) * kVector < rows.n;
         at += kThreads * kVector) {  // the whole warp
      if (rows.rotation.signs != nullptr && at < rows.n) apply_signs(rows.rotation.signs, at, x[0]);
      walsh(rows.rotation.walsh_bits, x[0]);
      top = fmaxf(top, largest(x[0]));
      if (at < rows.n) planes.keep(at, x[0]);
#pragma unroll
      for (int i = 0; i < (kVectors - 1) * kVector; ++i) {
        x[i / kVector][i % kVector] = x[i / kVector + 1][i % kVector];
      }
    }
    return top;
  }
  __device__ static __forceinline__ void store(const RowRotation& rotation, const Tile& tile,
                                               const RowQuantizer& quantizer,
                                               const float (&y)[Tile::kSums], uint8_t* codes) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* e = y + 8 * i + 2 * half;
        words[i] = quantizer.quantize_rounded(e[0], e[1], e[4], e[5]);
      }
      const int row = tile.first + lane / 4 + 8 * half;
      if (row >= rotation.m) break;
      *reinterpret_cast<uint4*>(codes + row * rotation.columns + tile.column() + lane % 4 * 16) = {
          words[0], words[1], words[2], words[3]};
    }
  }
};

}  // namespace quarot::cuda::step
