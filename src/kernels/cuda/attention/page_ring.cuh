// How the attention kernels bring pages in: rings of slices of blocks in shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/kv_page.h"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda {

inline constexpr int kAttentionWarps = 4;
inline constexpr int kAttentionThreads = 32 * kAttentionWarps;

// Decoding is the work of teams of so many threads, of which a block may hold several.
__device__ __forceinline__ int team_thread() {
  return static_cast<int>(threadIdx.x) % kAttentionThreads;
}
__device__ __forceinline__ void team_sync() {
  barrier_sync(1 + static_cast<int>(threadIdx.x) / kAttentionThreads, kAttentionThreads);
}

// kTokens consecutive tokens of a block, whole tiles.
template <int kHeadDim, int kKeyBits, int kValueBits, int kTokens>
struct Slice {
  static constexpr PageLayout kLayout{kHeadDim, kKeyBits, kValueBits};
  static constexpr int kTile = kLayout.tile_bytes();
  static constexpr int kBytes = kTokens / kTileTokens * kTile;

  // What one token (0 … 15) of a tile has.
  __device__ static const uint8_t* key_row(const uint8_t* tile, int token) {
    return tile + token * kLayout.key_row_bytes();
  }
  __device__ static const uint8_t* value_row(const uint8_t* tile, int token) {
    return tile + kLayout.values() + token * kLayout.value_row_bytes();
  }
  __device__ static uint32_t key_param(const uint8_t* tile, int group, int token) {
    const auto* params = reinterpret_cast<const uint32_t*>(tile + kLayout.key_params());
    return params[group * kTileTokens + token];
  }
  __device__ static uint32_t value_param(const uint8_t* tile, int group, int token) {
    const auto* params = reinterpret_cast<const uint32_t*>(tile + kLayout.value_params());
    return params[group * kTileTokens + token];
  }
};

// kThreads threads (a warp or the block; `rank` among them) share kStages slices, filled by the
// copy engine (sm_90) or cp.async.
template <typename Slice, int kStages, int kThreads>
class SliceRing {
 public:
  __device__ SliceRing(uint8_t* shared, uint64_t* barriers, int rank)
      : shared_(shared), barriers_(barriers), rank_(rank) {}
  // Once; until the threads have met after this, nothing may be filled.
  __device__ void init() {
#if __CUDA_ARCH__ >= 900
    if (rank_ == 0) {
      for (int i = 0; i < kStages; ++i) mbarrier_init(shared_address(barriers_ + i), 1);
      mbarrier_init_fence();
    }
#endif
  }
  // Slice number i = 0, 1, 2, …, in turn, from global memory; null past the last. Its place must
  // have been left by all.
  __device__ void fill(int i, const uint8_t* slice) {
    uint8_t* stage = shared_ + i % kStages * Slice::kBytes;
#if __CUDA_ARCH__ >= 900
    if (rank_ == 0 && slice != nullptr) {
      const uint32_t barrier = shared_address(barriers_ + i % kStages);
      mbarrier_expect(barrier, Slice::kBytes);
      copy_bulk(shared_address(stage), slice, Slice::kBytes, barrier);
    }
#else
    if (slice != nullptr) {
      for (int at = 16 * rank_; at < Slice::kBytes; at += 16 * kThreads) {
        copy_async_16(shared_address(stage + at), slice + at, true);
      }
    }
    copy_async_commit();
#endif
  }
  __device__ uint8_t* wait(int i) {
#if __CUDA_ARCH__ >= 900
    mbarrier_wait(shared_address(barriers_ + i % kStages), i / kStages & 1);
#else
    copy_async_wait<kStages - 1>();
    meet();
#endif
    return shared_ + i % kStages * Slice::kBytes;
  }
  __device__ static void meet() {
    if constexpr (kThreads == 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

 private:
  uint8_t* shared_;
  uint64_t* barriers_;
  int rank_;
};

// Rows g and 8 + g of a score tile are these tokens and those 8 later: neighbours differ in parity,
// so that both K (16-byte loads of rows) and V (four tokens a lane) meet few bank conflicts.
__device__ __forceinline__ int tile_token(int row) {
  return row % 2 == 0 ? row / 2 : 4 + (row / 2 ^ 1);
}

}  // namespace quarot::cuda
