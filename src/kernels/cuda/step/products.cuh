// The products of a step: each warp multiplies its share of the weights with the row of codes and
// adds its sums to the cells of the output.
#pragma once

#include "kernels/cuda/gemm/fragment.cuh"
#include "kernels/cuda/step/cells.cuh"
#include "kernels/cuda/step/feed.cuh"

namespace quarot::cuda::step {

struct DeviceProduct {
  const uint8_t* weight;
  const float* scales;
  const float* bias;
  int strips;  // of pairs: of gate
  int blocks;  // of columns
};

using Ring = Couple[kDepth];

// Where a warp stands, and what it works on. It is in shared memory: of what would live in
// registers from phase to phase, calls would make stacks, for which L1 has no room.
struct WarpWork {
  Share shares[kProducts];
  FeedState feed;
  int layer = 0;
  int unit = 0;    // of attention
  int slices = 0;  // of the cache, that its ring there has taken in
};

__device__ __forceinline__ void multiply_block(const uint4& words, uint32_t codes, int block,
                                               int32_t (&sums)[4]) {
  uint32_t a[2][4];
  unpack<0>(words, a[0]);
  unpack<1>(words, a[1]);
  uint32_t b[4];
  load_matrix_x4(b, codes + block * kBlockColumns);
  mma_s8(sums, a[0], b[0], b[1]);
  mma_s8(sums, a[1], b[2], b[3]);
}

// Sums a strip at a time: add(strip, blocks, sums), with lane 4i's sums of channels i and i + 8 in
// [0] and [2], shifted. The token is column 0 of operand B; the others are garbage that no one
// reads, for all lanes read the row's own codes.
class StripSums {
 public:
  __device__ StripSums(const Share& share, int blocks)
      : blocks_(blocks), strip_(share.strip), block_(share.block), first_(share.block) {}

  __device__ int block() const { return block_; }
  // Blocks before the strip's last.
  __device__ int inside() const { return blocks_ - 1 - block_; }
  __device__ void skip(int blocks) { block_ += blocks; }
  // After block(): the last of the strip, or of the share.
  template <typename Add>
  __device__ __forceinline__ void advance(bool last, Add&& add) {
    if (++block_ < blocks_ && !last) return;
    if (threadIdx.x % 4 == 0) add(strip_, block_ - first_);
    ++strip_;
    first_ = block_ = 0;
  }

 private:
  int blocks_;
  int strip_;
  int block_;
  int first_;
};

__device__ __forceinline__ void clear(int32_t (&sums)[4]) { sums[0] = sums[2] = 0; }

// All of a warp's share. plain() says how many couples from here on are like each other, inside a
// strip; each of those is multiplied by `inside(couple)`, the one after them by `next(couple)`.
template <typename Plain, typename Inside, typename Next>
__device__ __forceinline__ void for_couples(WarpWork& work, Ring& ring, Feed& feed, int couples,
                                            Plain&& plain, Inside&& inside, Next&& next) {
  const int lane = threadIdx.x % 32;
  const uint32_t begin = shared_address(&ring[0][0][lane]);
  uint32_t at = begin + work.feed.slot * static_cast<int>(sizeof(Couple));
  const auto take = [&](uint4(&words)[2]) {
    copy_async_wait<kDepth - 1>();
    words[0] = load_shared(at);
    words[1] = load_shared(at + kBlockBytes);
  };
  const auto move = [&] {
    at += sizeof(Couple);
    if (at == begin + kDepth * sizeof(Couple)) at = begin;
  };
  uint4 words[2];
  while (couples > 0) {
    const int run = min(min(couples - 1, plain()), feed.plain());
#pragma unroll 1
    for (int i = 0; i < run; ++i) {
      take(words);
      inside(words);
      feed.copy_plain(at);
      move();
    }
    take(words);
    next(words);
    feed.copy(ring[(at - begin) / sizeof(Couple)]);
    move();
    couples -= max(run, 0) + 1;
  }
  const FeedState state = feed.state(static_cast<int>((at - begin) / sizeof(Couple)));
  __syncwarp();
  if (lane == 0) work.feed = state;
  __syncwarp();
}

// Where a lane's ldmatrix rows start: every token's is the one there is.
__device__ __forceinline__ uint32_t lane_codes(const uint8_t* codes) {
  return shared_address(codes) + threadIdx.x % 32 / 8 * 16;
}

__device__ __forceinline__ void add_product(WarpWork& work, Ring& ring, Feed& feed, Product which,
                                            const DeviceProduct& product, const uint8_t* codes,
                                            uint64_t* cells) {
  const Share share = work.shares[which];
  const uint32_t row = lane_codes(codes);
  int32_t sums[4] = {};
  StripSums strips(share, product.blocks);
  const auto add = [&](int strip, int blocks) {
    uint64_t* cell = cells + strip * kBlockRows + threadIdx.x % 32 / 4;
    add_relaxed(cell, sum_cell(sums[0] >> kUnpackShift, blocks));
    add_relaxed(cell + 8, sum_cell(sums[2] >> kUnpackShift, blocks));
    clear(sums);
  };
  int left = share.blocks;
  for_couples(
      work, ring, feed, couples_of(share, false), [&] { return strips.inside() / 2; },
      [&](const uint4(&words)[2]) {
        multiply_block(words[0], row, strips.block(), sums);
        multiply_block(words[1], row, strips.block() + 1, sums);
        strips.skip(2);
        left -= 2;
      },
      [&](const uint4(&words)[2]) {
        multiply_block(words[0], row, strips.block(), sums);
        strips.advance(left == 1, add);
        if (left > 1) {
          multiply_block(words[1], row, strips.block(), sums);
          strips.advance(left == 2, add);
        }
        left -= 2;
      });
}

// What makes silu(gate) · up of a channel's sums.
struct GateScales {
  float gate, up, gate_bias, up_bias;

  __device__ GateScales(const DeviceProduct& product, int channel, int ffn)
      : gate(product.scales[channel]), up(product.scales[ffn + channel]), gate_bias(0), up_bias(0) {
    if (product.bias == nullptr) return;
    gate_bias = product.bias[channel];
    up_bias = product.bias[ffn + channel];
  }
  __device__ float gated(const DeviceProduct& product, float scale, const PairSums& sums) const {
    float g = scaled(sums.gate, scale, gate);
    float u = scaled(sums.up, scale, up);
    if (product.bias != nullptr) {
      g = __fadd_rn(g, gate_bias);
      u = __fadd_rn(u, up_bias);
    }
    return swiglu(g, u);
  }
};

// Whoever adds what was lacking of a channel makes the FFN's hidden value of it.
__device__ __forceinline__ void add_gate_up(WarpWork& work, Ring& ring, Feed& feed,
                                            const DeviceProduct& product, const uint8_t* codes,
                                            float scale, int ffn, uint64_t* cells, float* hidden) {
  const Share share = work.shares[kGateUp];
  const uint32_t row = lane_codes(codes);
  int32_t gate[4] = {};
  int32_t up[4] = {};
  StripSums strips(share, product.blocks);
  const auto add = [&](int strip, int blocks) {
    const int channel = strip * kBlockRows + static_cast<int>(threadIdx.x % 32 / 4);
    // On their way together with the sums.
    const GateScales scales[2] = {{product, channel, ffn}, {product, channel + 8, ffn}};
    uint64_t cell[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint64_t mine =
          pair_cell({gate[2 * i] >> kUnpackShift, up[2 * i] >> kUnpackShift}, blocks);
      cell[i] = mine + fetch_add_relaxed(cells + channel + 8 * i, mine);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!is_complete_pair(cell[i], product.blocks)) continue;
      store_float(hidden + channel + 8 * i, scales[i].gated(product, scale, pair_of(cell[i])));
    }
    clear(gate);
    clear(up);
  };
  int left = share.blocks;
  for_couples(
      work, ring, feed, share.blocks, [&] { return strips.inside(); },
      [&](const uint4(&words)[2]) {
        multiply_block(words[0], row, strips.block(), gate);
        multiply_block(words[1], row, strips.block(), up);
        strips.skip(1);
        --left;
      },
      [&](const uint4(&words)[2]) {
        multiply_block(words[0], row, strips.block(), gate);
        multiply_block(words[1], row, strips.block(), up);
        strips.advance(left == 1, add);
        --left;
      });
}

}  // namespace quarot::cuda::step
