// The heart of both Hopper kernels: one thread feeds a ring of stages through the copy engine, two
// consumer warpgroups multiply. The weights are operand A: each lane takes its int4 fragment from
// shared memory in one 16-byte load, unpacks it in registers and feeds int8 wgmma; the tokens are
// operand B, straight from shared memory. So a block computes tiles of yᵀ.
#pragma once

#include <cuda.h>

#include "kernels/cuda/gemm/fragment.cuh"
#include "kernels/cuda/gemm/packed.h"
#include "kernels/cuda/gemm/wgmma.cuh"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda::hopper {

inline constexpr int kConsumers = 2;
inline constexpr int kThreads = 128 * (1 + kConsumers);  // the producer is the last warpgroup
inline constexpr int kStepColumns = 128;                 // of k in one stage
inline constexpr int kStepBlocks = kStepColumns / kBlockColumns;

// What a block computes at a time: each consumer kFragments · 64 output channels × kTokens tokens.
template <int kFragments_, int kTokens_, int kStages_>
struct Tile {
  static constexpr int kFragments = kFragments_;
  static constexpr int kTokens = kTokens_;
  static constexpr int kStages = kStages_;
  static constexpr int kConsumerStrips = 4 * kFragments;  // row blocks of 16 channels
  static constexpr int kStrips = kConsumers * kConsumerStrips;
  static constexpr int kConsumerChannels = kConsumerStrips * kBlockRows;
  static constexpr int kChannels = kStrips * kBlockRows;
  using Sums = int32_t[kFragments][kTokens / 2];  // of one thread, kUnpackShift bits too large

  struct Stage {
    uint8_t activations[kTokens * kStepColumns];  // rows of 128 bytes, swizzled
    uint4 weight[kStrips][kStepBlocks][32];
  };
  static_assert(sizeof(Stage) % 1024 == 0, "swizzled tiles are aligned to 1024 bytes");
  struct Pipeline {
    Stage stages[kStages];
    uint64_t full[kStages];
    uint64_t empty[kStages];
  };
};

// A place in the ring of stages, and the parity of its barriers' phase.
template <typename T>
struct Turn {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == T::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// By one thread; the blocks that share weights (kShare of a cluster) synchronise before they use
// it.
template <typename T, int kShare>
__device__ __forceinline__ void start(typename T::Pipeline& pipeline,
                                      const CUtensorMap& activations, const CUtensorMap& weight) {
  for (int s = 0; s < T::kStages; ++s) {
    mbarrier_init(shared_address(&pipeline.full[s]), 1);
    mbarrier_init(shared_address(&pipeline.empty[s]), 4 * kConsumers * kShare);
  }
  mbarrier_init_fence();
  prefetch_tensor_map(&activations);
  prefetch_tensor_map(&weight);
}

// Strips that one copy brings in: of those of a tile, or, gated, of each consumer's gates and of
// its values, which lie apart.
template <typename T, int kShare, bool kGated>
inline constexpr int kCopyStrips = kGated ? T::kConsumerStrips / 2 : T::kStrips / kShare;

// Where a tile's weights lie: from strip `first` on; gated, the values `apart` strips behind the
// gates.
struct Strips {
  int first;
  int apart;
};

// Its part, that of its rank, of a stage's weights, for all of the blocks that share them.
template <typename T, int kShare, bool kGated>
__device__ __forceinline__ void copy_weights(const CUtensorMap& weight, typename T::Stage& stage,
                                             int word, const Strips& strips, int rank,
                                             uint32_t full) {
  constexpr int kCount = kCopyStrips<T, kShare, kGated>;
  constexpr int kCopies = T::kStrips / kShare / kCount;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int copy = rank * kCopies + i;
    const int from = kGated ? copy / 2 * kCount + copy % 2 * strips.apart : copy * kCount;
    const uint32_t to = shared_address(stage.weight[copy * kCount]);
    if constexpr (kShare > 1) {
      copy_tensor_multicast(to, &weight, word, strips.first + from, full, (1 << kShare) - 1);
    } else {
      copy_tensor(to, &weight, word, strips.first + from, full);
    }
  }
}

// The producer's steps `first` to `last` of one tile.
template <typename T, int kShare, bool kGated>
__device__ __forceinline__ void produce(const CUtensorMap& activations, const CUtensorMap& weight,
                                        typename T::Pipeline& pipeline, int token,
                                        const Strips& strips, int rank, int first, int last,
                                        Turn<T>& turn) {
  constexpr int kBlockWords = kBlockBytes / 8;  // the weights' map counts 8-byte words
  for (int step = first; step < last; ++step) {
    auto& stage = pipeline.stages[turn.stage];
    const uint32_t full = shared_address(&pipeline.full[turn.stage]);
    mbarrier_wait(shared_address(&pipeline.empty[turn.stage]), turn.parity ^ 1);
    mbarrier_expect(full, sizeof(stage));
    copy_tensor(shared_address(stage.activations), &activations, step * kStepColumns, token, full);
    copy_weights<T, kShare, kGated>(weight, stage, step * kStepBlocks * kBlockWords, strips, rank,
                                    full);
    turn.advance();
  }
}

// Tells the blocks that share weights that this warp has done with a stage.
template <int kShare>
__device__ __forceinline__ void release(uint64_t* empty) {
  const int lane = threadIdx.x % 32;
  if constexpr (kShare == 1) {
    if (lane == 0) mbarrier_arrive(shared_address(empty));
  } else {
    if (lane < kShare) mbarrier_arrive_remote(shared_address(empty), lane);
  }
}

// A consumer's sums over `steps` stages, at least one.
template <typename T, int kShare>
__device__ __forceinline__ void accumulate(typename T::Pipeline& pipeline, int consumer, int steps,
                                           Turn<T>& turn, typename T::Sums& sums) {
  const int lane = threadIdx.x % 32;
  const int strip = consumer * T::kConsumerStrips + static_cast<int>(threadIdx.x) / 32 % 4;
  int previous = 0;
  for (int step = 0; step < steps; ++step) {
    mbarrier_wait(shared_address(&pipeline.full[turn.stage]), turn.parity);
    const auto& stage = pipeline.stages[turn.stage];
    const uint64_t tokens = swizzled_descriptor(shared_address(stage.activations));
    uint4 words[kStepBlocks][T::kFragments];
#pragma unroll
    for (int block = 0; block < kStepBlocks; ++block) {
#pragma unroll
      for (int f = 0; f < T::kFragments; ++f) {
        words[block][f] = stage.weight[strip + 4 * f][block][lane];
      }
    }
    uint32_t a[2][T::kFragments][4];  // of two k-steps in turn: one is read while the next is made
#pragma unroll
    for (int block = 0; block < kStepBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int f = 0; f < T::kFragments; ++f) {
          if (half == 0) {
            unpack<0>(words[block][f], a[0][f]);
          } else {
            unpack<1>(words[block][f], a[1][f]);
          }
          wgmma_operand(a[half][f]);
        }
        const uint64_t b = tokens + 2 * (2 * block + half);  // 32 bytes further
        wgmma_fence();
#pragma unroll
        for (int f = 0; f < T::kFragments; ++f) {
          wgmma(sums[f], a[half][f], b, step + block + half);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (block + half == 0 && step > 0) release<kShare>(&pipeline.empty[previous]);
      }
    }
    previous = turn.stage;
    turn.advance();
  }
  wgmma_wait<0>();
  release<kShare>(&pipeline.empty[previous]);
#pragma unroll
  for (int f = 0; f < T::kFragments; ++f) wgmma_results(sums[f]);
}

// Channels run down a fragment's rows but along the output's, so sums are turned round in shared
// memory, [tokens][kConsumerChannels], where channel c of token t lies at c ^ swizzle(t): free of
// bank conflicts one way and in rows of 16 bytes the other. Writes the sums of kCount tokens from
// `first`.
__device__ __forceinline__ int swizzle(int token) { return token / 2 % 4 * 8; }

template <typename T, int kCount>
__device__ __forceinline__ void turn_round(const typename T::Sums& sums, int first,
                                           int32_t (*to)[T::kConsumerChannels]) {
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int f = 0; f < T::kFragments; ++f) {
#pragma unroll
    for (int j = 0; j < kCount / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * j + lane % 4 * 2 + i % 2;
        const int channel = 64 * f + 16 * warp + 8 * (i / 2) + lane / 4;
        to[token][channel ^ swizzle(token)] = sums[f][4 * (first / 8 + j) + i] >> kUnpackShift;
      }
    }
  }
}

}  // namespace quarot::cuda::hopper
