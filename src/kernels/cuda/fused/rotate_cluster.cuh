// The rotation of few rows, each by a cluster of blocks: all of them have the whole row up to where
// the factor comes, and each warp one tile of the factor's product; only the largest magnitude goes
// round.
#pragma once

#include "kernels/cuda/fused/rotate.cuh"

namespace quarot::cuda {

inline constexpr int kClusterBlocks = 8;
inline constexpr int kClusterWarps = kClusterBlocks * kMaxRowThreads / 32;

// As fill_planes, of any width in few registers, so that a block finds room beside one of the
// product before or after it.
__device__ __forceinline__ float fill_planes_in_turns(const Rows& args, int row, uint8_t* shared,
                                                      float* squares) {
  __shared__ float slots[kMaxRowThreads / 32];
  constexpr int kBatch = 2;
  const RowRotation& rotation = args.rotation;
  Planes<false> planes(shared, rotation);
  planes.clear_padding(rotation.m);
  float top = 0;
  for (int base = 0; base * kMaxRowThreads * kVector < args.n; base += kBatch) {
    RawRow<float, kBatch> raw;
    raw.load(args, row, base);
    float x[kBatch][kVector];
    raw.expand(args, base, x, squares);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = element_of(base + i);
      if (at >= args.n) continue;
      if (rotation.signs != nullptr) apply_signs(rotation.signs, at, x[i]);
      top = fmaxf(top, largest(x[i]));
      planes.keep(at, matrix_row(rotation, at), x[i]);
    }
  }
  const float range = range_scale(largest_of_block(slots, top));
  const Walsh256 walsh(rotation.walsh_bits);
  for (int i = 0; i * kMaxRowThreads * kVector < args.n; ++i) {
    const int at = element_of(i);
    float x[kVector] = {};
    if (at < args.n) planes.take(at, matrix_row(rotation, at), x);
    if (rotation.walsh_bits > 0) {
      walsh.apply<false>(x, range);
    } else {
#pragma unroll
      for (float& e : x) e *= range;
    }
    if (at < args.n) planes.store(at, matrix_row(rotation, at), x);
  }
  __syncthreads();
  return range;
}

__global__ void __launch_bounds__(kMaxRowThreads, 2) rotate_cluster_kernel(const Rows args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ float slots[kMaxRowThreads / 32];
  __shared__ float tops[kClusterBlocks];
  const RowRotation& rotation = args.rotation;
  begin_early();
  prefetch_rotation(rotation);
  cluster_sync();  // all are there to be told
  wait_early();
  const int row = blockIdx.x / kClusterBlocks;
  const auto rank = static_cast<int>(cluster_rank());
  auto* squares = reinterpret_cast<float*>(shared + plane_bytes(rotation));
  const float range = fill_planes_in_turns(args, row, shared, squares);

  const int warp = threadIdx.x / 32;
  const WarpTiles<1, 1> tiles(rotation, warp * kClusterBlocks + rank);
  const bool busy = tiles.first_m < tiles.tiles_m;
  float y[1][1][2][4] = {};
  if (busy) tiles.multiply(rotation, nullptr, Planes<false>(shared, rotation), y);
  float top = largest_of_block(slots, fmaxf(largest(y[0][0][0]), largest(y[0][0][1])));
  if (threadIdx.x < kClusterBlocks) store_cluster(shared_address(&tops[rank]), threadIdx.x, top);
  cluster_sync();
  top = largest(tops);

  const float factor = norm_factor(args, squares) * plane_unit(rotation, range);
  const RowQuantizer quantizer(args.quant, factor, top);
  if (rank == 0 && threadIdx.x == 0) args.quant.scales[row] = quantizer.scale();
  if (!busy) return;
  const int lane = threadIdx.x % 32;
  uint8_t* out = output_row(args, row) + tiles.first_n * 16 + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t q[4];
    quantizer.quantize(y[0][0][half], q);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int m = tiles.first_m * 16 + lane / 4 + 8 * i;
      if (m >= rotation.m) continue;
      *reinterpret_cast<uint16_t*>(out + m * rotation.columns + half * 8) =
          static_cast<uint16_t>(__byte_perm(q[2 * i], q[2 * i + 1], 0x0040));
    }
  }
#endif
}

}  // namespace quarot::cuda
