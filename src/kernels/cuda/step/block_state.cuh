// What a block of the step kernel keeps in shared memory, and where rows lie in the workspace.
//
// The workspace has two sets of rows, of even and of odd layers: a layer's sums of down of the
// layer before (its own input), of q, k, v, of o, of gate and up, and the floats between. While
// attention of a layer goes on, blocks zero the other set, that of the layer before. By then it has
// been read: every block has a share of every product, so one that has seen the sums of down
// complete, which the layer began with, knows that all blocks have made all inputs of the layer
// before. And nobody writes there before all blocks are done zeroing: the next to do so are the
// layer's sums of down, which take a row of gate and up from all blocks, each of which met its own
// zeroing threads, after their fence, before it multiplied that.
#pragma once

#include "kernels/cuda/attention/decode.cuh"
#include "kernels/cuda/gemm/stream_kernel.cuh"
#include "kernels/cuda/step/cells.cuh"
#include "kernels/cuda/step/products.cuh"
#include "kernels/cuda/step/step.h"

namespace quarot::cuda::step {

static_assert(kThreads == kMaxRowThreads);

// How a row becomes a product's input: the first of these that has its shape.
enum class Maker {
  kQuantize,
  kQuantizeWide,
  kAcross,
  kWalsh,
  kColumns,
  kTurn,
  kRotate,
  kRotateWide
};
using Quantize = QuantizedInput<1>;
using QuantizeWide = QuantizedInput<2>;
using Rotate = RotatedInput<1, 1>;
using RotateWide = RotatedInput<1, 4>;

struct DeviceLayer {
  DeviceProduct products[kProducts];
  Rows rows[kProducts];
  Maker makers[kProducts];
  DecodeArgs attention;
};

// The one token there is: what attention would read of it from memory in every layer.
struct Token {
  static constexpr int kMaxTurns = 64;   // pairs of a head that turn
  static constexpr int kMaxPages = 128;  // of longer sequences the page table stays where it is
  int32_t length;
  int32_t turn_row;
  alignas(16) float2 turns[kMaxTurns];
  int32_t pages[kMaxPages];
};

// The units of a layer's attention, and those that each team begins with.
struct AttentionPlan {
  int units;
  int tiles;
  int first_split;
  UnitPlan first[kTeams];

  __device__ static int first_unit(int team) {
    return static_cast<int>(blockIdx.x) + team * static_cast<int>(gridDim.x);
  }
  __device__ DecodeUnit unit(int i) const { return {0, i % tiles, tiles, first_split + i / tiles}; }
};

// Before the ring; behind it, the teams' own. The phases of a layer are functions out of line,
// which find everything here: what one of them has in registers does not burden the loops of
// another.
struct BlockState {
  StepArgs args;
  alignas(16) uint32_t layers[2][sizeof(DeviceLayer) / 4];
  WarpWork work[kWarps];
  Token token;
  AttentionPlan attention[2];  // of an even and an odd layer
  UnitPlan later[kTeams];      // what a team goes on with
  float scale;                 // of the codes

  __device__ const DeviceLayer& layer(int i) const {
    return reinterpret_cast<const DeviceLayer&>(layers[i % 2]);
  }
  __device__ DeviceLayer& layer(int i) { return reinterpret_cast<DeviceLayer&>(layers[i % 2]); }
  __device__ WarpWork& own_work() { return work[threadIdx.x / 32]; }
  __device__ const WarpWork& own_work() const { return work[threadIdx.x / 32]; }
  // Of the layer that this warp is at.
  __device__ const DeviceLayer& own_layer() const { return layer(own_work().layer); }
  // A row of layer i.
  __device__ uint8_t* row(int i, int64_t offset) const {
    return args.workspace + i % kRowSets * args.layout.set_bytes + offset;
  }
  __device__ float* own_floats(int64_t offset) const {
    return reinterpret_cast<float*>(row(own_work().layer, offset));
  }
  // The sums of a product of layer i: those of down are the next layer's.
  __device__ uint64_t* cells(int i, Product which) const {
    const StepLayout& at = args.layout;
    uint8_t* cells = which == kQkv      ? row(i, at.qkv)
                     : which == kOutput ? row(i, at.output)
                     : which == kGateUp ? row(i, at.pairs)
                                        : row(i + 1, at.down);
    return reinterpret_cast<uint64_t*>(cells);
  }
  __device__ SumRow sums(int i, Product which) const {
    const DeviceProduct& product = layer(i).products[which];
    return {cells(i, which), product.blocks, scale, product.scales, product.bias};
  }
};
template <int kHeadDim, int kKeyBits, int kValueBits>
struct TeamsState : BlockState {
  DecodeTeam<kHeadDim, kKeyBits, kValueBits> teams[kTeams];
};

__device__ __forceinline__ uint8_t* block_memory() {
  extern __shared__ __align__(128) uint8_t shared[];
  return shared;
}
__device__ __forceinline__ BlockState& block_state() {
  return *reinterpret_cast<BlockState*>(block_memory());
}
__device__ __forceinline__ Ring& warp_weights(const BlockState& state) {
  return reinterpret_cast<Ring*>(block_memory() + state.args.layout.ring)[threadIdx.x / 32];
}

// The record of layer i, by `threads` of the block's, of which this is number `thread`.
__device__ __forceinline__ void load_layer(BlockState& state, int i, int thread, int threads) {
  constexpr int kWords = sizeof(DeviceLayer) / 4;
  const auto* from =
      reinterpret_cast<const uint32_t*>(static_cast<const DeviceLayer*>(state.args.layers) + i);
  for (int w = thread; w < kWords; w += threads) state.layers[i % 2][w] = __ldg(from + w);
}
__device__ __forceinline__ void adopt_token(BlockState& state, int i) {
  Token& token = state.token;
  DecodeArgs& attention = state.layer(i).attention;
  attention.lengths = &token.length;
  attention.heads.rotary.rows = &token.turn_row;
  attention.heads.rotary.table = token.turns;
  if (token.length <= Token::kMaxPages * kPageTokens) {
    attention.page_table = attention.heads.cache.page_table = token.pages;
  }
}
// Once it is loaded, by a warp: attention finds the token here, and what each team begins with.
template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __forceinline__ void plan_attention(BlockState& state, int i) {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) adopt_token(state, i);
  __syncwarp();
  if (lane >= state.args.teams) return;
  const DecodeArgs& args = state.layer(i).attention;
  const int length = args.lengths[0];
  const SplitRange splits(length, args.window > 0 ? max(0, length - args.window) : 0);
  AttentionPlan& plan = state.attention[i % 2];
  const int tiles = args.kv_heads * args.query_tiles;
  const int units = tiles * splits.count;
  plan.tiles = tiles;
  plan.units = units;
  plan.first_split = splits.first;
  const int first = AttentionPlan::first_unit(lane);
  if (first < units) plan.first[lane] = UnitPlan(args, plan.unit(first), Traits::kSliceTokens);
}
// The token as the first layer's record points to it, by the whole block.
__device__ __forceinline__ void load_token(BlockState& state) {
  Token& token = state.token;
  const DecodeArgs& attention = state.layer(0).attention;
  const Rotary& rotary = attention.heads.rotary;
  const int length = attention.lengths[0];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < rotary.dims / 2) {
    const int row = rotary.rows != nullptr ? rotary.rows[0] : length - 1;
    token.turns[thread] = rotary.table[static_cast<int64_t>(row) * (rotary.dims / 2) + thread];
  }
  const int pages = (length + kPageTokens - 1) / kPageTokens;
  if (thread < pages && thread < Token::kMaxPages) {
    token.pages[thread] = attention.page_table[thread];
  }
  if (thread == 0) {
    token.length = length;
    token.turn_row = 0;
  }
}

// The constants of a layer's products, into L2, by all blocks together; of each by `warps` warps,
// of which this is number `warp`.
__device__ __forceinline__ void prefetch_layer(const DeviceLayer& layer, int warp, int warps) {
  constexpr int kLine = 32;  // floats
  const int first = (static_cast<int>(blockIdx.x) + warp * static_cast<int>(gridDim.x)) * kLine;
  if (threadIdx.x % 32 != 0) return;
#pragma unroll 1
  for (int p = 0; p < kProducts; ++p) {
    const DeviceProduct& product = layer.products[p];
    const int outputs = product.strips * kBlockRows * (p == kGateUp ? 2 : 1);
    for (int i = first; i < outputs; i += static_cast<int>(gridDim.x) * warps * kLine) {
      prefetch_l2(product.scales + i);
      if (product.bias != nullptr) prefetch_l2(product.bias + i);
    }
    const Rows& rows = layer.rows[p];
    if (rows.gain != nullptr && first < rows.n) prefetch_l2(rows.gain + first);
  }
}

}  // namespace quarot::cuda::step
