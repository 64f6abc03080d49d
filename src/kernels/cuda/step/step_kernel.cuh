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
enum class Maker { kQuantize, kQuantizeWide, kRotate, kRotateWide };
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

// ---- Inputs
template <typename Source>
__device__ __forceinline__ float make_input(Maker maker, const Rows& rows, const Source& source,
                                            uint8_t* scratch, uint8_t* codes) {
  switch (maker) {
    case Maker::kQuantize:
      return Quantize::make(rows, source, scratch, codes);
    case Maker::kQuantizeWide:
      return QuantizeWide::make(rows, source, scratch, codes);
    case Maker::kRotate:
      return Rotate::make(rows, source, scratch, codes);
    default:
      return RotateWide::make(rows, source, scratch, codes);
  }
}

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
__device__ __forceinline__ void prefetch_layer(const DeviceLayer& layer) {
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
// The new token's heads out of the sums of q, k, v.
struct SummedHeads {
  SumRow sums;
  int query_heads;
  int kv_heads;

  __device__ static void wait() {}
  template <Role kRole>
  __device__ RawVector<float> load(const HeadBatch& /*batch*/, int /*sequence*/, int head,
                                   const HeadLane& lane) const {
    const int first = kRole == Role::kQuery ? 0
                      : kRole == Role::kKey ? query_heads
                                            : query_heads + kv_heads;
    RawVector<float> raw{};
    if (!lane.active()) return raw;
    float y[kVector];
    sums.read((first + head) * lane.dim + lane.i * kVector, y);
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

// What a block has in shared memory beside the ring, the row and the scratch.
template <typename Team>
struct BlockState {
  uint32_t layers[2][sizeof(DeviceLayer) / 4];
  WarpWork work[kWarps];
  Part qkv, output_and_pairs, down, attention, ffn;
  float scale;  // of the codes
  Team teams[kTeams];
};

template <int kHeadDim, int kKeyBits, int kValueBits>
__global__ void __launch_bounds__(kThreads, 1) step_kernel(const __grid_constant__ StepArgs args) {
#if __CUDA_ARCH__ >= 900
  using Team = DecodeTeam<kHeadDim, kKeyBits, kValueBits>;
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(16) uint8_t state_bytes[sizeof(BlockState<Team>)];
  auto& state = reinterpret_cast<BlockState<Team>&>(state_bytes);
  const StepLayout& at = args.layout;
  uint8_t* codes = shared + at.codes;
  auto* x = reinterpret_cast<float*>(shared + at.x);
  auto* weights = reinterpret_cast<const uint8_t**>(shared + at.weights);
  uint8_t* scratch = shared + at.scratch;
  const auto cells = [&](int64_t offset) {
    return reinterpret_cast<uint64_t*>(args.workspace + offset);
  };
  const auto sums_of = [&](const DeviceProduct& product, int64_t offset) {
    return SumRow{cells(offset), product.blocks, state.scale, product.scales, product.bias};
  };
  auto* attention_out = reinterpret_cast<float*>(args.workspace + at.attention);
  auto* ffn_hidden = reinterpret_cast<float*>(args.workspace + at.ffn);

  const auto load_layer = [&](int i) {
    constexpr int kWords = sizeof(DeviceLayer) / 4;
    const auto* from =
        reinterpret_cast<const uint32_t*>(static_cast<const DeviceLayer*>(args.layers) + i);
    for (int w = threadIdx.x; w < kWords; w += kThreads) state.layers[i % 2][w] = __ldg(from + w);
  };
  const auto layer_at = [&](int i) -> const DeviceLayer& {
    return reinterpret_cast<const DeviceLayer&>(state.layers[i % 2]);
  };
  load_layer(0);
  for (int i = threadIdx.x; i < args.layer_count * kProducts; i += kThreads) {
    weights[i] =
        static_cast<const DeviceLayer*>(args.layers)[i / kProducts].products[i % kProducts].weight;
  }
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
    const DeviceProduct& product = layer_at(0).products[which];
    const int units = product.strips * product.blocks;
    const int index = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kProducts);
    const int parts = static_cast<int>(gridDim.x) * kWarps;
    const int begin = stream::part(units, index, parts);
    work.shares[which] = {begin, stream::part(units, index + 1, parts) - begin,
                          begin / product.blocks, begin % product.blocks};
    if (which == 0) work.feed = {};
  }
  __syncthreads();

  WarpWork& work = state.work[threadIdx.x / 32];
  Ring& ring = reinterpret_cast<Ring*>(shared)[threadIdx.x / 32];
  const auto feed = [&] {
    return Feed(work.feed, weights, args.layer_count * kProducts, work.shares, args.pair_distance);
  };
  {
    Feed first = feed();
    for (int i = 0; i < kDepth; ++i) first.copy(ring[i]);
    const FeedState filled = first.state(0);
    __syncwarp();
    if (threadIdx.x % 32 == 0) work.feed = filled;
    __syncwarp();
  }
  prefetch_layer(layer_at(0));
  int slices = 0;  // of the cache, that this warp's ring has taken in
  for (int half = 0; half < 2 * args.layer_count; ++half) {
    // A half is two products: of attention, or of the FFN.
    const DeviceLayer& layer = layer_at(half / 2);
    const bool is_ffn = half % 2 == 1;
    // Begins and ends with all threads meeting: what comes before reads the codes and the scratch
    // of before, what comes after reads these codes and their scale.
    const auto make = [&](Product which, const auto& source) {
      __syncthreads();
      // Where the cache's tokens come early, the row's squares lie beside them.
      uint8_t* room = which == kQkv && args.early ? scratch + Traits::kQueriesAt : scratch;
      const float made = make_input(layer.makers[which], layer.rows[which], source, room, codes);
      if (threadIdx.x == 0) state.scale = made;
      __syncthreads();
    };
    if (!is_ffn && args.early) {
      Attention<kHeadDim, kKeyBits, kValueBits>(layer.attention, scratch, state.teams, args.teams)
          .begin(slices);
    }
    const Product first_product = is_ffn ? kGateUp : kQkv;
    touch_input(layer.rows[first_product]);
    if (half > 0) {
      const DeviceLayer& last = is_ffn ? layer : layer_at(half / 2 - 1);
      add_sums(sums_of(last.products[is_ffn ? kOutput : kDown], is_ffn ? at.output : at.down),
               args.hidden, x);
    }
    make(first_product, SharedRow{x});
    Feed first = feed();
    if (is_ffn) {
      add_gate_up(work, ring, first, layer.products[kGateUp], codes, state.scale, args.ffn,
                  cells(at.pairs), ffn_hidden);
      if (half / 2 + 1 < args.layer_count) prefetch_layer(layer_at(half / 2 + 1));
      state.qkv.zero();
      state.attention.zero();
    } else {
      const DeviceProduct& qkv = layer.products[kQkv];
      add_product(work, ring, first, kQkv, qkv, codes, cells(at.qkv));
      Attention<kHeadDim, kKeyBits, kValueBits>(layer.attention, scratch, state.teams, args.teams)
          .run(args.early, slices,
               SummedHeads{sums_of(qkv, at.qkv), layer.attention.heads.batch.query_heads,
                           layer.attention.kv_heads});
      if (half / 2 + 1 < args.layer_count) load_layer(half / 2 + 1);
      state.ffn.zero();
    }
    const Product which = is_ffn ? kDown : kOutput;
    touch_input(layer.rows[which]);
    make(which, FloatRow{is_ffn ? ffn_hidden : attention_out});
    Feed second = feed();
    add_product(work, ring, second, which, layer.products[which], codes,
                cells(is_ffn ? at.down : at.output));
    (is_ffn ? state.output_and_pairs : state.down).zero();
  }
  if (blockIdx.x > 0) return;
  add_sums(sums_of(layer_at(args.layer_count - 1).products[kDown], at.down), args.hidden, x);
  for (int i = 0; element_of(i) < args.hidden; ++i) {
    RawVector<float> raw;
    raw.load(x + element_of(i));
    raw.store(args.x + element_of(i));
  }
#endif
}

}  // namespace quarot::cuda::step
