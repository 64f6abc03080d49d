// The layers of one token, by blocks that stay. In each layer a block makes the input of a product
// (all of it, each block for itself), multiplies its share of the weights with it, and adds its
// sums to the cells of the output; attention lies between, by as many teams as it has parts.
// Whoever needs a row waits for its cells.
#pragma once

#include "kernels/cuda/step/attend.cuh"
#include "kernels/cuda/step/inputs.cuh"

namespace quarot::cuda::step {

// ---- Products
__device__ __forceinline__ Feed warp_feed(BlockState& state) {
  const StepArgs& args = state.args;
  WarpWork& work = state.own_work();
  return {work.feed, reinterpret_cast<const uint8_t* const*>(block_memory() + args.layout.weights),
          args.layer_count * kProducts, work.shares, args.pair_distance};
}
inline __device__ __noinline__ void multiply(Product which) {
  BlockState& state = block_state();
  Feed feed = warp_feed(state);
  add_product(state.own_work(), warp_weights(state), feed, which, state.own_layer().products[which],
              block_memory() + state.args.layout.codes, state.cells(state.own_work().layer, which));
}
inline __device__ __noinline__ void multiply_gate_up() {
  BlockState& state = block_state();
  const StepArgs& args = state.args;
  Feed feed = warp_feed(state);
  add_gate_up(state.own_work(), warp_weights(state), feed, state.own_layer().products[kGateUp],
              block_memory() + args.layout.codes, state.scale, args.ffn,
              state.cells(state.own_work().layer, kGateUp), state.own_floats(args.layout.ffn));
}

// ---- The kernel
// compute-sanitizer's racecheck takes two accesses for ordered by the number of barriers that each
// warp has passed, whichever they were. Once warps have met at named ones (team_sync, those who
// keep house) that others had no part in, it reports hazards between accesses that a __syncthreads
// stands between: cuda_step_test's narrow shape has 29, and a build without such barriers none.

// What does not change from layer to layer, and the ring full.
template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __noinline__ void begin_block() {
  auto& state = static_cast<TeamsState<kHeadDim, kKeyBits, kValueBits>&>(block_state());
  const StepArgs& args = state.args;
  const StepLayout& at = args.layout;
  load_layer(state, 0, static_cast<int>(threadIdx.x), kThreads);
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
  if (threadIdx.x % 32 == 0) state.own_work() = {};
  const int team = static_cast<int>(threadIdx.x) / kAttentionThreads;
  if (team < kTeams) init_team(state.teams[team]);
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
  }
  __syncthreads();
  Feed feed = warp_feed(state);
  Ring& ring = warp_weights(state);
#pragma unroll 1
  for (int i = 0; i < kDepth; ++i) feed.copy(ring[i]);
  const FeedState filled = feed.state(0);
  __syncwarp();
  if (threadIdx.x % 32 == 0) state.own_work().feed = filled;
  load_token(state);
  __syncthreads();
  if (threadIdx.x < 32) plan_attention<kHeadDim, kKeyBits, kValueBits>(state, 0);
  prefetch_layer(state.layer(0), static_cast<int>(threadIdx.x) / 32, kWarps);
  __syncthreads();
}

// Whether there is another layer.
inline __device__ __noinline__ bool go_on(int layers) {
  WarpWork& work = block_state().own_work();
  const int next = work.layer + 1;
  __syncwarp();
  if (threadIdx.x % 32 == 0) work.layer = next;
  __syncwarp();
  return next < layers;
}

template <int kHeadDim, int kKeyBits, int kValueBits>
__global__ void __launch_bounds__(kThreads, 1) step_kernel(const __grid_constant__ StepArgs args) {
#if __CUDA_ARCH__ >= 900
  using Attention = step::Attention<kHeadDim, kKeyBits, kValueBits>;
  if (threadIdx.x == 0) block_state().args = args;
  __syncthreads();
  begin_block<kHeadDim, kKeyBits, kValueBits>();
  do {
    if (args.early && threadIdx.x < kThreads - kKeepers) Attention::begin();
    // Where the cache's tokens come early, the row's squares lie beside them.
    make_from_residual(kQkv, args.early ? Attention::kRingBytes : 0);
    multiply(kQkv);
    if (threadIdx.x < kThreads - kKeepers) {
      Attention::run();
    } else {
      keep_house<kHeadDim, kKeyBits, kValueBits>();
    }
    make_output_input();
    multiply(kOutput);
    make_from_residual(kGateUp, 0);
    multiply_gate_up();
    make_down_input();
    multiply(kDown);
  } while (go_on(args.layer_count));
  if (blockIdx.x > 0) return;
  auto* x = reinterpret_cast<float*>(block_memory() + args.layout.x);
  add_sums(block_state().sums(args.layer_count - 1, kDown), args.hidden, x);
  for (int i = 0; element_of(i) < args.hidden; ++i) {
    RawVector<float> raw;
    raw.load(x + element_of(i));
    raw.store(args.x + element_of(i));
  }
#endif
}

}  // namespace quarot::cuda::step
