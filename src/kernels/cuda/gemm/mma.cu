// The GEMM through mma.sync: int8 anywhere from sm_80, int4 where the tensor cores have it (8.x).
// A block of 8 warps computes 128 output channels × 128 tokens; three stages of cp.async bring
// 128 bytes of each token's channels and the matching weight blocks.
#include "kernels/cuda/gemm/dispatch.cuh"
#include "kernels/cuda/gemm/fragment.cuh"
#include "kernels/cuda/gemm/launch.h"
#include "kernels/cuda/gemm/packed.h"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kStages = 3;
constexpr int kTileStrips = 8;  // row blocks of 16 output channels
constexpr int kTileTokens = 128;
constexpr int kChunk = 16;      // bytes of one copy
constexpr int kRowChunks = 8;   // of a token in one stage
constexpr int kWarpStrips = 2;  // a warp's part: 32 channels × 64 tokens
constexpr int kWarpTiles = 8;   // of 8 tokens

struct Operands {
  const uint8_t* activations;
  const uint8_t* weight;
  int row_bytes;  // of a token
  int m;
  int strips;
  int blocks;  // of 64 columns
};

template <bool kInt4>
struct Stage {
  static constexpr int kBlocks = kInt4 ? 4 : 2;  // weight blocks that match kRowChunks
  uint4 activations[kTileTokens][kRowChunks];    // chunk c of row r at c ^ (r % 8)
  uint4 weight[kTileStrips][kBlocks][32];
};

template <bool kInt4>
__device__ __forceinline__ void load_stage(const Operands& in, Stage<kInt4>& stage, int step) {
  constexpr int kBlocks = Stage<kInt4>::kBlocks;
  for (int i = threadIdx.x; i < kTileTokens * kRowChunks; i += kThreads) {
    const int row = i / kRowChunks;
    const int chunk = i % kRowChunks;
    const int token = blockIdx.y * kTileTokens + row;
    const int byte = (step * kRowChunks + chunk) * kChunk;
    const bool valid = token < in.m && byte < in.row_bytes;
    const int64_t offset = valid ? static_cast<int64_t>(token) * in.row_bytes + byte : 0;
    copy_async_16(shared_address(&stage.activations[row][chunk ^ (row % 8)]),
                  in.activations + offset, valid);
  }
  for (int i = threadIdx.x; i < kTileStrips * kBlocks * 32; i += kThreads) {
    const int lane = i % 32;
    const int block = i / 32 % kBlocks;
    const int row = i / 32 / kBlocks;
    const int strip = blockIdx.x * kTileStrips + row;
    const int column = step * kBlocks + block;
    const bool valid = strip < in.strips && column < in.blocks;
    const int64_t offset =
        valid ? (static_cast<int64_t>(strip) * in.blocks + column) * kBlockBytes + lane * kChunk
              : 0;
    copy_async_16(shared_address(&stage.weight[row][block][lane]), in.weight + offset, valid);
  }
}

// One weight block (64 columns) of the warp's strips times its tokens.
template <bool kInt4>
__device__ __forceinline__ void multiply(const Stage<kInt4>& stage, int block, int warp_strip,
                                         int warp_token,
                                         int32_t (&sums)[kWarpStrips][kWarpTiles][4]) {
  const int lane = threadIdx.x % 32;
  uint4 words[kWarpStrips];
  for (int s = 0; s < kWarpStrips; ++s) words[s] = stage.weight[warp_strip + s][block][lane];
  if constexpr (kInt4) {
#pragma unroll
    for (int j = 0; j < kWarpTiles; j += 2) {
      uint32_t b[4];
      const int row = warp_token + 8 * (j + lane / 16) + lane % 8;
      const int chunk = 2 * block + lane / 8 % 2;
      load_matrix_x4(b, shared_address(&stage.activations[row][chunk ^ (row % 8)]));
#pragma unroll
      for (int s = 0; s < kWarpStrips; ++s) {
        const uint32_t a[4] = {words[s].x, words[s].y, words[s].z, words[s].w};
        mma_s4(sums[s][j], a, b[0], b[1]);
        mma_s4(sums[s][j + 1], a, b[2], b[3]);
      }
    }
  } else {
    uint32_t a[kWarpStrips][2][4];
#pragma unroll
    for (int s = 0; s < kWarpStrips; ++s) {
      unpack<0>(words[s], a[s][0]);
      unpack<1>(words[s], a[s][1]);
    }
#pragma unroll
    for (int j = 0; j < kWarpTiles; ++j) {
      uint32_t b[4];
      const int row = warp_token + 8 * j + lane % 8;
      const int chunk = 4 * block + lane / 8;
      load_matrix_x4(b, shared_address(&stage.activations[row][chunk ^ (row % 8)]));
#pragma unroll
      for (int s = 0; s < kWarpStrips; ++s) {
        mma_s8(sums[s][j], a[s][0], b[0], b[1]);
        mma_s8(sums[s][j], a[s][1], b[2], b[3]);
      }
    }
  }
}

template <bool kInt4, typename Out>
__global__ void __launch_bounds__(kThreads) gemm_mma(const Operands in, const Epilogue epilogue) {
  constexpr int kBlocks = Stage<kInt4>::kBlocks;
  extern __shared__ uint4 shared[];
  auto* stages = reinterpret_cast<Stage<kInt4>*>(shared);
  const int warp = threadIdx.x / 32;
  const int warp_strip = warp % 4 * kWarpStrips;
  const int warp_token = warp / 4 * 8 * kWarpTiles;
  const int steps = (in.blocks + kBlocks - 1) / kBlocks;
  int32_t sums[kWarpStrips][kWarpTiles][4] = {};

  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) load_stage(in, stages[s], s);
    copy_async_commit();
  }
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    const int next = step + kStages - 1;
    if (next < steps) load_stage(in, stages[next % kStages], next);
    copy_async_commit();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      multiply(stages[step % kStages], block, warp_strip, warp_token, sums);
    }
  }

  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int s = 0; s < kWarpStrips; ++s) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel =
          (blockIdx.x * kTileStrips + warp_strip + s) * kBlockRows + 8 * half + lane / 4;
      const Columns<Out, 1> columns(epilogue, channel);
#pragma unroll
      for (int j = 0; j < kWarpTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int token = blockIdx.y * kTileTokens + warp_token + 8 * j + lane % 4 * 2 + i;
          columns.store(token, {sums[s][j][2 * half + i] >> (kInt4 ? 0 : kUnpackShift)});
        }
      }
    }
  }
}

template <bool kInt4>
Status launch(const Gemm& p, cudaStream_t stream) {
  const Operands in{
      static_cast<const uint8_t*>(p.activations), static_cast<const uint8_t*>(p.weight),
      static_cast<int>(kInt4 ? p.k / 2 : p.k),    static_cast<int>(p.m),
      static_cast<int>(row_blocks(p.n)),          static_cast<int>(column_blocks(p.k))};
  const dim3 grid((in.strips + kTileStrips - 1) / kTileStrips,
                  static_cast<unsigned>((p.m + kTileTokens - 1) / kTileTokens));
  return with_output_type(p.output_type, [&]<typename Out>(std::type_identity<Out>) -> Status {
    const auto kernel = gemm_mma<kInt4, Out>;
    constexpr int kBytes = kStages * sizeof(Stage<kInt4>);
    QUAROT_RETURN_IF_ERROR(check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "gemm"));
    kernel<<<grid, kThreads, kBytes, stream>>>(in, epilogue_of(p));
    return check_launch("gemm (mma)");
  });
}

}  // namespace

Status launch_int4_mma(const Gemm& problem, cudaStream_t stream) {
  return launch<true>(problem, stream);
}
Status launch_int8_mma(const Gemm& problem, cudaStream_t stream) {
  return launch<false>(problem, stream);
}

}  // namespace quarot::cuda
