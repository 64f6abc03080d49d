// The GEMM of some tokens on Hopper, too few for tiles of wgmma_kernel.cuh to fill the machine:
// smaller tiles, each computed by a cluster of kSplit blocks that share out k. Their sums meet in
// shared memory: each block adds up and writes its part of the tile's tokens.
#pragma once

#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/gemm/wgmma_pipeline.cuh"

namespace quarot::cuda::hopper {

template <int kTokens>
using SmallTile = Tile<1, kTokens, 8>;

template <typename T>
union SmallShared {
  typename T::Pipeline pipeline;
  int32_t sums[kConsumers][T::kTokens][T::kConsumerChannels];  // once the pipeline has run dry
};

template <typename T, int kSplit, typename Out>
__device__ __forceinline__ void write_part(const Epilogue& epilogue, const SmallShared<T>& shared,
                                           int rank, int channel, int first_token) {
  constexpr int kLanes = T::kConsumerChannels / 4;  // a thread takes 4 channels of a token
  constexpr int kPart = T::kTokens / kSplit;
  const int consumer = threadIdx.x / 128;
  const int thread = threadIdx.x % 128;
  const int column = thread % kLanes * 4;
  const Columns<Out, 4> columns(epilogue, channel + consumer * T::kConsumerChannels + column);
  for (int i = thread / kLanes; i < kPart; i += 128 / kLanes) {
    const int token = rank * kPart + i;
    const uint32_t address = shared_address(&shared.sums[consumer][token][column ^ swizzle(token)]);
    int32_t total[4] = {};
#pragma unroll
    for (int r = 0; r < kSplit; ++r) {
      const int4 v = load_cluster(address, r);
      total[0] += v.x;
      total[1] += v.y;
      total[2] += v.z;
      total[3] += v.w;
    }
    columns.store(first_token + token, total);
  }
}

template <int kTokens, int kSplit, typename Out>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_wgmma_split(const __grid_constant__ CUtensorMap activations,
                     const __grid_constant__ CUtensorMap weight, const int steps,
                     const Epilogue epilogue) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t bytes[];
  using T = SmallTile<kTokens>;
  auto& shared = *reinterpret_cast<SmallShared<T>*>(bytes);
  if (threadIdx.x == 0) start<T, 1>(shared.pipeline, activations, weight);
  __syncthreads();
  const int rank = static_cast<int>(cluster_rank());
  const int channel_tile = blockIdx.x / kSplit;
  const int token = blockIdx.y * kTokens;
  const int first = steps * rank / kSplit;
  const int last = steps * (rank + 1) / kSplit;
  const int group = threadIdx.x / 128;
  Turn<T> turn;
  if (group == kConsumers) {
    if (threadIdx.x == 128 * kConsumers) {
      produce<T, 1, false>(activations, weight, shared.pipeline, token,
                           {channel_tile * T::kStrips, 0}, 0, first, last, turn);
    }
    __syncwarp();
  } else {
    typename T::Sums sums;
    accumulate<T, 1>(shared.pipeline, group, last - first, turn, sums);
    barrier_sync(1, 128 * kConsumers);
    turn_round<T, kTokens>(sums, 0, shared.sums[group]);
  }
  cluster_sync();
  if (group < kConsumers) {
    write_part<T, kSplit, Out>(epilogue, shared, rank, channel_tile * T::kChannels, token);
  }
  cluster_sync();  // a block's sums stay until the others have read them
#endif
}

}  // namespace quarot::cuda::hopper
