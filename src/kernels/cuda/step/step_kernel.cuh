// The layers of one token, by blocks that stay. In each layer a block makes the input of a product
// (all of it, each block for itself), multiplies its share of the weights with it, and adds its
// sums to the cells of the output; attention lies between, by as many blocks as it has parts.
// Whoever needs a row waits for its cells.
//
// When cells may be zeroed again follows from who waits for whom. Every block has a share of every
// product, so a block that has seen a row complete knows that all blocks have read what that row
// was made from. It zeroes that, and then adds to a product that must be complete before anyone
// writes there again:
// - the sums of down, when attention's output is complete, before it adds to gate and up;
// - those of q, k, v and attention's output, when o's sums are complete, before down;
// - those of o, and of gate and up, when silu(gate) · up is complete, before the next q, k, v;
// - silu(gate) · up, when down's sums are complete, before the next o.
#pragma once

#include "kernels/cuda/attention/decode.cuh"
#include "kernels/cuda/gemm/stream_kernel.cuh"
#include "kernels/cuda/step/cells.cuh"
#include "kernels/cuda/step/products.cuh"
#include "kernels/cuda/step/step.h"

namespace quarot::cuda::step {

static_assert(kThreads == kMaxRowThreads);

// How a row becomes a product's input: the first of these that has its shape.
enum class Maker { kQuantize, kQuantizeWide, kWalsh, kRotate, kRotateWide };
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

// This block's part of a row of the workspace, to be zeroed.
struct Part {
  uint4* words;
  int count;

  Part() = default;
  __device__ Part(uint8_t* row, int64_t bytes) {
    const int total = static_cast<int>(bytes / sizeof(uint4));
    const int most = (total + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    const int begin = min(static_cast<int>(blockIdx.x) * most, total);
    words = reinterpret_cast<uint4*>(row) + begin;
    count = min(most, total - begin);
  }
  // Visible before what the block adds after its next barrier.
  __device__ void zero() const {
    for (int i = threadIdx.x; i < count; i += kThreads) words[i] = {};
    if (static_cast<int>(threadIdx.x) < count) fence_gpu();
  }
};

// The constants of a layer's products, into L2, by all blocks together.
inline __device__ __noinline__ void prefetch_layer(const DeviceLayer& layer) {
  constexpr int kLine = 32;  // floats
  const int first =
      (static_cast<int>(blockIdx.x) + static_cast<int>(threadIdx.x / 32 * gridDim.x)) * kLine;
  if (threadIdx.x % 32 != 0) return;
#pragma unroll 1
  for (int p = 0; p < kProducts; ++p) {
    const DeviceProduct& product = layer.products[p];
    const int outputs = product.strips * kBlockRows * (p == kGateUp ? 2 : 1);
    for (int i = first; i < outputs; i += static_cast<int>(gridDim.x) * kWarps * kLine) {
      prefetch_l2(product.scales + i);
      if (product.bias != nullptr) prefetch_l2(product.bias + i);
    }
    const Rows& rows = layer.rows[p];
    if (rows.gain != nullptr && first < rows.n) prefetch_l2(rows.gain + first);
  }
}

// What a block has in shared memory before the ring; behind it, the teams' own. The phases of a
// layer are functions out of line, which find everything here: what one of them has in registers
// does not burden the loops of another.
struct BlockState {
  StepArgs args;
  alignas(16) uint32_t layers[2][sizeof(DeviceLayer) / 4];
  WarpWork work[kWarps];
  Part qkv, output_and_pairs, down, attention, ffn;
  float scale;  // of the codes

  __device__ const DeviceLayer& layer(int i) const {
    return reinterpret_cast<const DeviceLayer&>(layers[i % 2]);
  }
  __device__ WarpWork& own_work() { return work[threadIdx.x / 32]; }
  __device__ uint64_t* cells(Product which) const {
    const StepLayout& at = args.layout;
    const int64_t offset = which == kQkv      ? at.qkv
                           : which == kOutput ? at.output
                           : which == kGateUp ? at.pairs
                                              : at.down;
    return reinterpret_cast<uint64_t*>(args.workspace + offset);
  }
  __device__ SumRow sums(int i, Product which) const {
    const DeviceProduct& product = layer(i).products[which];
    return {cells(which), product.blocks, scale, product.scales, product.bias};
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

// ---- Inputs
template <typename Source>
__device__ __forceinline__ float make_codes(Maker maker, const Rows& rows, const Source& source,
                                            uint8_t* scratch, uint8_t* codes) {
  auto* squares = reinterpret_cast<float*>(scratch + plane_bytes(rows.rotation));
  switch (maker) {
    case Maker::kQuantize:
      return Quantize::make(rows, source, scratch, codes);
    case Maker::kQuantizeWide:
      return QuantizeWide::make(rows, source, scratch, codes);
    case Maker::kWalsh:
      return rotate_walsh_row<float>(rows, source, scratch, codes);
    case Maker::kRotate:
      return rotate_by_factor<float, false, 1, 1>(rows, source, scratch, squares, codes);
    default:
      return rotate_by_factor<float, false, 1, 4>(rows, source, scratch, squares, codes);
  }
}

// Begins and ends with all threads meeting: what comes before may read the codes and the scratch of
// before, what comes after reads these codes and their scale.
template <typename Source>
__device__ __forceinline__ void make_input(int layer, Product which, const Source& source,
                                           int room) {
  BlockState& state = block_state();
  const StepLayout& at = state.args.layout;
  __syncthreads();
  const DeviceLayer& of = state.layer(layer);
  const float scale = make_codes(of.makers[which], of.rows[which], source,
                                 block_memory() + at.scratch + room, block_memory() + at.codes);
  if (threadIdx.x == 0) state.scale = scale;
  __syncthreads();
}

// What a thread will read in making an input beside the row, into L1, while it waits for the row.
__device__ __forceinline__ void touch_input(const Rows& rows) {
  if (rows.gain != nullptr) {
    for (int i = 0; element_of(i) < rows.n; ++i) touch(rows.gain + element_of(i));
  }
  if (rows.rotation.m == 0 || rows.rotation.log2 > 0) return;
  constexpr int kSmall = 8 * 1024;
  const int at = static_cast<int>(threadIdx.x) * 32;
  if (factor_bytes(rows.rotation) <= kSmall && at < factor_bytes(rows.rotation)) {
    touch(static_cast<const uint8_t*>(rows.rotation.factor) + at);
  }
}

// ---- Attention
// The new token's heads out of the layer's sums of q, k, v.
struct SummedHeads {
  int layer;

  __device__ static void wait() {}
  template <Role kRole>
  __device__ RawVector<float> load(const HeadBatch& batch, int /*sequence*/, int head,
                                   const HeadLane& lane) const {
    const int first = kRole == Role::kQuery ? 0
                      : kRole == Role::kKey ? batch.query_heads
                                            : batch.query_heads + batch.kv_heads;
    RawVector<float> raw{};
    if (!lane.active()) return raw;
    float y[kVector];
    block_state().sums(layer, kQkv).read((first + head) * lane.dim + lane.i * kVector, y);
    raw.v[0] = {y[0], y[1], y[2], y[3]};
    raw.v[1] = {y[4], y[5], y[6], y[7]};
    return raw;
  }
  __device__ static void store(float* to, float x) { store_float(to, x); }
  __device__ static void store(float* to, const float4& x) {
    store_float(to, x.x), store_float(to + 1, x.y);
    store_float(to + 2, x.z), store_float(to + 3, x.w);
  }
};

// Attention's parts go round the blocks, one to a team.
template <int kHeadDim, int kKeyBits, int kValueBits>
class Attention {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  using Team = DecodeTeam<kHeadDim, kKeyBits, kValueBits>;

 public:
  __device__ Attention(const DecodeArgs& args, uint8_t* memory, Team* teams, int count)
      : args_(args), team_(static_cast<int>(threadIdx.x) / kAttentionThreads), count_(count) {
    if (team_ >= count_) return;
    team_memory_ = memory + team_ * Traits::kAppendBytes;
    own_ = teams + team_;
    const int length = args.lengths[0];
    const int begin = args.window > 0 ? max(0, length - args.window) : 0;
    const int split_tokens = split_pages(length) * kPageTokens;
    first_split_ = begin / split_tokens;
    tiles_ = args.kv_heads * args.query_tiles;
    units_ = tiles_ * ((length - 1) / split_tokens + 1 - first_split_);
  }
  // The first part's tokens, brought in before its queries are known.
  __device__ void begin(int slices) const {
    if (first() < units_) begin_part(first(), slices);
  }
  __device__ void run(bool begun, int& slices, const SummedHeads& heads) const {
    for (int i = first(); i < units_; i += count_ * static_cast<int>(gridDim.x)) {
      if (!begun || i != first()) begin_part(i, slices);
      decode_unit(args_, unit(i), team_memory_, *own_, slices, heads);
    }
  }

 private:
  __device__ int first() const {
    return static_cast<int>(blockIdx.x) + team_ * static_cast<int>(gridDim.x);
  }
  __device__ DecodeUnit unit(int i) const {
    return {0, i % tiles_, tiles_, first_split_ + i / tiles_};
  }
  __device__ void begin_part(int i, int slices) const {
    fence_copies();
    team_sync();  // what the memory held is read
    begin_unit(args_, unit(i), team_memory_, *own_, slices);
  }

  const DecodeArgs& args_;
  int team_;
  int count_;
  uint8_t* team_memory_ = nullptr;
  Team* own_ = nullptr;
  int first_split_ = 0;
  int tiles_ = 0;
  int units_ = 0;
};

// ---- The phases of a layer
// The input of `which` out of the residual stream, to which the sums of `lacking`, of the layer
// `from`, are added first; none where that is negative. Scratch begins at `room`.
inline __device__ __noinline__ void make_from_residual(int layer, Product which, int from,
                                                       Product lacking, int room) {
  const BlockState& state = block_state();
  auto* x = reinterpret_cast<float*>(block_memory() + state.args.layout.x);
  touch_input(state.layer(layer).rows[which]);
  if (from >= 0) add_sums(state.sums(from, lacking), state.args.hidden, x);
  make_input(layer, which, SharedRow{x}, room);
}
// And out of what attention, or gate and up, give.
inline __device__ __noinline__ void make_from_floats(int layer, Product which) {
  const BlockState& state = block_state();
  const StepArgs& args = state.args;
  touch_input(state.layer(layer).rows[which]);
  const int64_t offset = which == kOutput ? args.layout.attention : args.layout.ffn;
  make_input(layer, which, FloatRow{reinterpret_cast<const float*>(args.workspace + offset)}, 0);
}

__device__ __forceinline__ Feed warp_feed(BlockState& state) {
  const StepArgs& args = state.args;
  WarpWork& work = state.own_work();
  return {work.feed, reinterpret_cast<const uint8_t* const*>(block_memory() + args.layout.weights),
          args.layer_count * kProducts, work.shares, args.pair_distance};
}
inline __device__ __noinline__ void multiply(int layer, Product which) {
  BlockState& state = block_state();
  Feed feed = warp_feed(state);
  add_product(state.own_work(), warp_weights(state), feed, which,
              state.layer(layer).products[which], block_memory() + state.args.layout.codes,
              state.cells(which));
}
inline __device__ __noinline__ void multiply_gate_up(int layer) {
  BlockState& state = block_state();
  const StepArgs& args = state.args;
  Feed feed = warp_feed(state);
  add_gate_up(state.own_work(), warp_weights(state), feed, state.layer(layer).products[kGateUp],
              block_memory() + args.layout.codes, state.scale, args.ffn, state.cells(kGateUp),
              reinterpret_cast<float*>(args.workspace + args.layout.ffn));
}

template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __forceinline__ Attention<kHeadDim, kKeyBits, kValueBits> attention_of(int layer) {
  auto& state = static_cast<TeamsState<kHeadDim, kKeyBits, kValueBits>&>(block_state());
  return {state.layer(layer).attention, block_memory() + state.args.layout.scratch, state.teams,
          state.args.teams};
}
// `slices` counts those of the cache that this warp's ring has taken in; attend returns how many it
// then has.
template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __noinline__ void begin_attention(int layer, int slices) {
  attention_of<kHeadDim, kKeyBits, kValueBits>(layer).begin(slices);
}
template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __noinline__ int attend(int layer, int slices) {
  const BlockState& state = block_state();
  attention_of<kHeadDim, kKeyBits, kValueBits>(layer).run(state.args.early, slices,
                                                          SummedHeads{layer});
  return slices;
}

// ---- The kernel
inline __device__ __noinline__ void load_layer(BlockState& state, int i) {
  constexpr int kWords = sizeof(DeviceLayer) / 4;
  const auto* from =
      reinterpret_cast<const uint32_t*>(static_cast<const DeviceLayer*>(state.args.layers) + i);
  for (int w = threadIdx.x; w < kWords; w += kThreads) state.layers[i % 2][w] = __ldg(from + w);
}

// What does not change from layer to layer, and the ring full.
template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __noinline__ void begin_block() {
  auto& state = static_cast<TeamsState<kHeadDim, kKeyBits, kValueBits>&>(block_state());
  const StepArgs& args = state.args;
  const StepLayout& at = args.layout;
  load_layer(state, 0);
  auto* weights = reinterpret_cast<const uint8_t**>(block_memory() + at.weights);
  for (int i = threadIdx.x; i < args.layer_count * kProducts; i += kThreads) {
    weights[i] =
        static_cast<const DeviceLayer*>(args.layers)[i / kProducts].products[i % kProducts].weight;
  }
  auto* x = reinterpret_cast<float*>(block_memory() + at.x);
  for (int i = 0; element_of(i) < args.hidden; ++i) {
    RawVector<float> raw;
    raw.load(args.x + element_of(i));
    raw.store(x + element_of(i));
  }
  const int team = static_cast<int>(threadIdx.x) / kAttentionThreads;
  if (team < kTeams) init_team(state.teams[team]);
  if (threadIdx.x == 0) {
    state.qkv = Part(args.workspace + at.qkv, at.output - at.qkv);
    state.output_and_pairs = Part(args.workspace + at.output, at.down - at.output);
    state.down = Part(args.workspace + at.down, at.attention - at.down);
    state.attention = Part(args.workspace + at.attention, at.ffn - at.attention);
    state.ffn = Part(args.workspace + at.ffn, at.bytes - at.ffn);
  }
  __syncthreads();
  if (threadIdx.x < kWarps * kProducts) {
    WarpWork& work = state.work[threadIdx.x / kProducts];
    const int which = threadIdx.x % kProducts;
    const DeviceProduct& product = state.layer(0).products[which];
    const int units = product.strips * product.blocks;
    const int index = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kProducts);
    const int parts = static_cast<int>(gridDim.x) * kWarps;
    const int begin = stream::part(units, index, parts);
    work.shares[which] = {begin, stream::part(units, index + 1, parts) - begin,
                          begin / product.blocks, begin % product.blocks};
    if (which == 0) work.feed = {};
  }
  __syncthreads();
  Feed feed = warp_feed(state);
  Ring& ring = warp_weights(state);
#pragma unroll 1
  for (int i = 0; i < kDepth; ++i) feed.copy(ring[i]);
  const FeedState filled = feed.state(0);
  __syncwarp();
  if (threadIdx.x % 32 == 0) state.own_work().feed = filled;
  __syncwarp();
  prefetch_layer(state.layer(0));
}

template <int kHeadDim, int kKeyBits, int kValueBits>
__global__ void __launch_bounds__(kThreads, 1) step_kernel(const __grid_constant__ StepArgs args) {
#if __CUDA_ARCH__ >= 900
  // Where the cache's tokens come early, the row's squares lie beside them.
  const int room = args.early ? DecodeTraits<kHeadDim, kKeyBits, kValueBits>::kQueriesAt : 0;
  BlockState& state = block_state();
  if (threadIdx.x == 0) state.args = args;
  __syncthreads();
  begin_block<kHeadDim, kKeyBits, kValueBits>();
  int slices = 0;
  const int layers = args.layer_count;
  for (int i = 0; i < layers; ++i) {
    if (args.early) begin_attention<kHeadDim, kKeyBits, kValueBits>(i, slices);
    make_from_residual(i, kQkv, i - 1, kDown, room);
    multiply(i, kQkv);
    slices = attend<kHeadDim, kKeyBits, kValueBits>(i, slices);
    if (i + 1 < layers) load_layer(state, i + 1);
    state.ffn.zero();

    make_from_floats(i, kOutput);
    multiply(i, kOutput);
    state.down.zero();

    make_from_residual(i, kGateUp, i, kOutput, 0);
    multiply_gate_up(i);
    if (i + 1 < layers) prefetch_layer(state.layer(i + 1));
    state.qkv.zero();
    state.attention.zero();

    make_from_floats(i, kDown);
    multiply(i, kDown);
    state.output_and_pairs.zero();
  }
  if (blockIdx.x > 0) return;
  auto* x = reinterpret_cast<float*>(block_memory() + args.layout.x);
  add_sums(state.sums(layers - 1, kDown), args.hidden, x);
  for (int i = 0; element_of(i) < args.hidden; ++i) {
    RawVector<float> raw;
    raw.load(x + element_of(i));
    raw.store(args.x + element_of(i));
  }
#endif
}

}  // namespace quarot::cuda::step
