// The GEMM of many tokens on Hopper: persistent blocks over tiles of 256 output channels × 128
// tokens. Two blocks of a cluster work on the same channels and share the weights' copies. While
// one consumer writes its sums out, the other has the tensor cores to itself.
#pragma once

#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/gemm/wgmma_pipeline.cuh"

namespace quarot::cuda::hopper {

using LargeTile = Tile<2, 128, 6>;
inline constexpr int kChunkTokens = 32;  // written out at a time

struct LargeShared {
  LargeTile::Pipeline pipeline;
  int32_t chunk[kConsumers][kChunkTokens][LargeTile::kConsumerChannels];
};

// The tiles of one cluster: every gridDim.x / kShare-th of all; within a group of token tiles the
// channels advance slowest, so that what runs at one time shares both weights and tokens.
struct Schedule {
  int channel_tiles;
  int token_tiles;  // of kShare · kTokens
  int group;        // token tiles in a group
  int steps;        // of k
  int apart;        // gated: strips from the gates to the values

  __host__ __device__ int tiles() const { return channel_tiles * token_tiles; }
  __device__ void locate(int tile, int& channel_tile, int& token_tile) const {
    const int first = tile / (group * channel_tiles) * group;
    const int width = min(group, token_tiles - first);
    const int within = tile - first * channel_tiles;
    channel_tile = within / width;
    token_tile = first + within % width;
  }
};

template <typename Out>
__device__ __forceinline__ void write(const Epilogue& epilogue, const LargeTile::Sums& sums,
                                      int32_t (*chunk)[LargeTile::kConsumerChannels], int consumer,
                                      int channel, int first_token) {
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  const Columns<Out, 4> columns(epilogue, channel + 4 * lane);
#pragma unroll
  for (int first = 0; first < LargeTile::kTokens; first += kChunkTokens) {
    barrier_sync(1 + consumer, 128);
    turn_round<LargeTile, kChunkTokens>(sums, first, chunk);
    barrier_sync(1 + consumer, 128);
#pragma unroll
    for (int i = 0; i < kChunkTokens / 4; ++i) {
      const int token = warp * (kChunkTokens / 4) + i;
      const auto v = *reinterpret_cast<const int4*>(&chunk[token][4 * lane ^ swizzle(token)]);
      columns.store(first_token + first + token, {v.x, v.y, v.z, v.w});
    }
  }
}

// The same, gated: a consumer's first half of channels gates the second.
__device__ __forceinline__ void write_gated(const Epilogue& epilogue, const LargeTile::Sums& sums,
                                            int32_t (*chunk)[LargeTile::kConsumerChannels],
                                            int consumer, int channel, int first_token) {
  constexpr int kGates = LargeTile::kConsumerChannels / 2;
  constexpr int kAtOnce = 32 / (kGates / 4);  // tokens of a warp
  const int warp = threadIdx.x / 32 % 4;
  const int at = threadIdx.x % (kGates / 4) * 4;
  const int mine = threadIdx.x % 32 / (kGates / 4);
  const GatedColumns columns(epilogue, channel + at);
#pragma unroll
  for (int first = 0; first < LargeTile::kTokens; first += kChunkTokens) {
    barrier_sync(1 + consumer, 128);
    turn_round<LargeTile, kChunkTokens>(sums, first, chunk);
    barrier_sync(1 + consumer, 128);
#pragma unroll
    for (int i = 0; i < kChunkTokens / 4; i += kAtOnce) {
      const int token = warp * (kChunkTokens / 4) + i + mine;
      const int32_t* row = chunk[token];
      columns.store(first_token + first + token,
                    *reinterpret_cast<const int4*>(&row[at ^ swizzle(token)]),
                    *reinterpret_cast<const int4*>(&row[(kGates + at) ^ swizzle(token)]));
    }
  }
}

template <int kShare, typename Out, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_wgmma(const __grid_constant__ CUtensorMap activations,
               const __grid_constant__ CUtensorMap weight, const Schedule schedule,
               const Epilogue epilogue) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t bytes[];
  auto& shared = *reinterpret_cast<LargeShared*>(bytes);
  using T = LargeTile;
  if (threadIdx.x == 0) start<T, kShare>(shared.pipeline, activations, weight);
  cluster_sync();
  const int rank = static_cast<int>(cluster_rank());
  const int group = threadIdx.x / 128;
  Turn<T> turn;
  if (group == kConsumers) {
    registers_decrease<40>();
    if (threadIdx.x == 128 * kConsumers) {
      for (int tile = blockIdx.x / kShare; tile < schedule.tiles(); tile += gridDim.x / kShare) {
        int channel_tile;
        int token_tile;
        schedule.locate(tile, channel_tile, token_tile);
        const int first = channel_tile * (kGated ? T::kStrips / 2 : T::kStrips);
        produce<T, kShare, kGated>(activations, weight, shared.pipeline,
                                   (token_tile * kShare + rank) * T::kTokens,
                                   {first, schedule.apart}, rank, 0, schedule.steps, turn);
      }
    }
    __syncwarp();
  } else {
    registers_increase<232>();
    for (int tile = blockIdx.x / kShare; tile < schedule.tiles(); tile += gridDim.x / kShare) {
      int channel_tile;
      int token_tile;
      schedule.locate(tile, channel_tile, token_tile);
      T::Sums sums;
      accumulate<T, kShare>(shared.pipeline, group, schedule.steps, turn, sums);
      const int consumer = channel_tile * kConsumers + group;
      const int token = (token_tile * kShare + rank) * T::kTokens;
      if constexpr (kGated) {
        write_gated(epilogue, sums, shared.chunk[group], group, consumer * T::kConsumerChannels / 2,
                    token);
      } else {
        write<Out>(epilogue, sums, shared.chunk[group], group, consumer * T::kConsumerChannels,
                   token);
      }
    }
  }
  cluster_sync();  // a block's barriers stay until the cluster's last copy and arrival
#endif
}

}  // namespace quarot::cuda::hopper
