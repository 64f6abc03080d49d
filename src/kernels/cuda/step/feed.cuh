// The weights of a step, brought in ahead of their use. What a warp multiplies, product after
// product and layer after layer, is known from the start: its ring is filled as it is emptied, and
// stays full while the warp waits for a row.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/packed.h"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda::step {

enum Product { kQkv, kOutput, kGateUp, kDown };
inline constexpr int kProducts = 4;
inline constexpr int kWarps = 16;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kTeams = 2;  // of a block, that attend, at most
inline constexpr int kDepth = 7;  // couples a warp has under way
inline constexpr int kRingBytes = kWarps * kDepth * 2 * kBlockBytes;

// Two blocks of weights: neighbours, or, of gate and up, one of each.
using Couple = uint4[2][32];

// A warp's part of a product: `blocks` of them (of gate's) from one in a strip of 16 channels on.
// The whole product is cut into equal parts, wherever their ends fall.
struct Share {
  int begin;
  int blocks;
  int strip;
  int block;
};
__device__ __forceinline__ int couples_of(const Share& share, bool pairs) {
  return pairs ? share.blocks : (share.blocks + 1) / 2;
}

// Where a warp stands, between products: kept in shared memory, for registers are everyone's.
struct FeedState {
  int product = 0;  // of all layers: whose couples are being copied,
  int couple = 0;   // and how many of them have been
  int slot = 0;     // of the ring: the next to be emptied and filled
};

class Feed {
 public:
  // weights: of all `products`; `pair_distance`: bytes from a gate block to its up block.
  __device__ Feed(const FeedState& state, const uint8_t* const* weights, int products,
                  const Share* shares, int pair_distance)
      : weights_(weights),
        shares_(shares),
        pair_distance_(pair_distance),
        products_(products),
        product_(state.product) {
    if (product_ < products_) enter(state.couple);
  }

  // Starts the copies of the next couple, if there is one; closes a group of copies in any case.
  __device__ __forceinline__ void copy(Couple& to) {
    while (left_ == 0 && product_ < products_) {
      if (++product_ < products_) enter(0);
    }
    if (left_ > 0) {
      const int lane = threadIdx.x % 32;
      copy_async_16_policy(shared_address(&to[0][lane]), from_, policy_);
      // Of an odd one the second block is not there, or the next warp's: it is not used.
      if (left_ > 1 || whole_) {
        copy_async_16_policy(shared_address(&to[1][lane]), from_ + second_, policy_);
      }
      from_ += step_;
      --left_;
    }
    copy_async_commit();
  }

  // How many of the next copies are of whole couples of one product.
  __device__ __forceinline__ int plain() const { return whole_ ? left_ : left_ - 1; }
  // The same as copy(), of one of those; `to` is the lane's place in the first block.
  __device__ __forceinline__ void copy_plain(uint32_t to) {
    copy_async_16_policy(to, from_, policy_);
    copy_async_16_policy(to + kBlockBytes, from_ + second_, policy_);
    from_ += step_;
    --left_;
    copy_async_commit();
  }

  // `slot` is the caller's.
  __device__ FeedState state(int slot) const {
    if (product_ >= products_) return {product_, 0, slot};
    return {product_, couples_of(shares_[product_ % kProducts], is_pair()) - left_, slot};
  }

 private:
  __device__ bool is_pair() const { return product_ % kProducts == kGateUp; }
  __device__ void enter(int couple) {
    const Share& share = shares_[product_ % kProducts];
    const bool pairs = is_pair();
    step_ = pairs ? kBlockBytes : 2 * kBlockBytes;
    second_ = pairs ? pair_distance_ : kBlockBytes;
    whole_ = pairs || share.blocks % 2 == 0;
    left_ = couples_of(share, pairs) - couple;
    from_ = weights_[product_] + static_cast<int64_t>(share.begin) * kBlockBytes + couple * step_ +
            threadIdx.x % 32 * 16;
  }

  const uint8_t* const* weights_;
  const Share* shares_;
  int pair_distance_;
  int products_;
  int product_;
  uint64_t policy_ = evict_first_policy();  // L2 is for what is read again
  const uint8_t* from_ = nullptr;
  int step_ = 0;
  int second_ = 0;
  int left_ = 0;
  bool whole_ = true;
};

}  // namespace quarot::cuda::step
