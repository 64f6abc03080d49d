// Attention of a layer, by some of a block's warps, and what the others do meanwhile.
#pragma once

#include "kernels/cuda/step/block_state.cuh"

namespace quarot::cuda::step {

// The new token's heads out of the layer's sums of q, k, v.
struct SummedHeads {
  __device__ static void wait() {}
  __device__ RawVector<float> load(Role role, const HeadBatch& batch, int /*sequence*/, int head,
                                   const HeadLane& lane) const {
    const int first = role == Role::kQuery ? 0
                      : role == Role::kKey ? batch.query_heads
                                           : batch.query_heads + batch.kv_heads;
    RawVector<float> raw{};
    if (!lane.active()) return raw;
    float y[kVector];
    const BlockState& state = block_state();
    state.sums(state.own_work().layer, kQkv).read((first + head) * lane.dim + lane.i * kVector, y);
    raw.v[0] = {y[0], y[1], y[2], y[3]};
    raw.v[1] = {y[4], y[5], y[6], y[7]};
    return raw;
  }
  __device__ static void store(float* to, float x) { store_float(to, x); }
  __device__ static void store(float* to, const float4& x) {
    store_floats(to, x.x, x.y);
    store_floats(to + 2, x.z, x.w);
  }
  __device__ static void store(float2* to, const float2& x) {
    store_floats(reinterpret_cast<float*>(to), x.x, x.y);
  }

  // That of the last split waits for the others, whose units go before its own: whatever a unit
  // waits for, teams that take units in turn have begun it before.
  __device__ static bool merges(unsigned* /*count*/, int /*splits*/, bool last_split,
                                bool& /*is_last*/) {
    return last_split;
  }
  __device__ static float2 fetch(const float2* from) {
    const uint2 v = load_relaxed(reinterpret_cast<const uint2*>(from));
    return {__uint_as_float(v.x), __uint_as_float(v.y)};
  }
  __device__ static float4 fetch(const float4* from) {
    const uint4 v = load_relaxed(reinterpret_cast<const uint4*>(from));
    return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
  }
  __device__ static bool arrived(const float2& part) {
    return is_stored(part.x) && is_stored(part.y);
  }
  __device__ static bool arrived(const float4& part) {
    return is_stored(part.x) && is_stored(part.y) && is_stored(part.z) && is_stored(part.w);
  }
};

// A layer's units go round the blocks, one to a team. Each part is out of line, so that it has the
// registers for itself.
template <int kHeadDim, int kKeyBits, int kValueBits>
class Attention {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  using Team = DecodeTeam<kHeadDim, kKeyBits, kValueBits>;

 public:
  // How much of a team's memory the tokens take that come before their queries are known.
  static constexpr int kRingBytes = Traits::kQueriesAt;

  // The first unit's tokens, brought in before its queries are known.
  __device__ static __noinline__ void begin() {
    BlockState& state = block_state();
    if (own_team() >= state.args.teams || first_unit() >= plan().units) return;
    fence_copies();
    team_sync();  // what the memory held is read
    begin_unit(args(), plan().first[own_team()], memory(), team(), state.own_work().slices);
  }
  __device__ static __noinline__ void run() {
    if (own_team() >= block_state().args.teams) return;
    set_unit(first_unit());
    if (!block_state().args.early) begin();
    while (unit() < plan().units) {
      if (unit() != first_unit()) begin_later();
      make_token();
      attend();
      finish();
      set_unit(unit() + block_state().args.teams * static_cast<int>(gridDim.x));
    }
  }

 private:
  __device__ static int own_team() { return static_cast<int>(threadIdx.x) / kAttentionThreads; }
  __device__ static int first_unit() { return AttentionPlan::first_unit(own_team()); }
  __device__ static int unit() { return block_state().own_work().unit; }
  __device__ static void set_unit(int i) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) block_state().own_work().unit = i;
    __syncwarp();
  }
  __device__ static const AttentionPlan& plan() {
    return block_state().attention[block_state().own_work().layer % 2];
  }
  __device__ static const UnitPlan& unit_plan() {
    return unit() == first_unit() ? plan().first[own_team()] : block_state().later[own_team()];
  }
  __device__ static const DecodeArgs& args() { return block_state().own_layer().attention; }
  __device__ static uint8_t* memory() {
    return block_memory() + block_state().args.layout.scratch + own_team() * Traits::kAppendBytes;
  }
  __device__ static Team& team() {
    return static_cast<TeamsState<kHeadDim, kKeyBits, kValueBits>&>(block_state())
        .teams[own_team()];
  }

  __device__ static __noinline__ void begin_later() {
    BlockState& state = block_state();
    fence_copies();
    team_sync();
    UnitPlan& later = state.later[own_team()];
    if (team_thread() == 0) later = UnitPlan(args(), plan().unit(unit()), Traits::kSliceTokens);
    team_sync();
    begin_unit(args(), later, memory(), team(), state.own_work().slices);
  }
  __device__ static __noinline__ void make_token() {
    make_unit_token<kHeadDim, kKeyBits, kValueBits>(args(), unit_plan(), memory(), SummedHeads());
  }
  __device__ static __noinline__ void attend() {
    int& slices = block_state().own_work().slices;
    int filled = slices;
    attend_unit(args(), unit_plan(), memory(), team(), filled);
    __syncwarp();
    if (threadIdx.x % 32 == 0) slices = filled;
    __syncwarp();
  }
  __device__ static __noinline__ void finish() {
    finish_unit(args(), unit_plan(), memory(), team(), SummedHeads());
  }
};

// By the warps that never attend: this block's part of the other set of rows zeroed
// (block_state.cuh), and the next layer's record and constants brought in.
inline constexpr int kKeepers = kThreads - kTeams * kAttentionThreads;
inline constexpr int kKeepersBarrier = 1 + kTeams;

template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __noinline__ void keep_house() {
  BlockState& state = block_state();
  const int layer = state.own_work().layer;
  const StepArgs& args = state.args;
  const int thread = static_cast<int>(threadIdx.x) - kTeams * kAttentionThreads;
  const bool is_last = layer + 1 == args.layer_count;
  if (!is_last) load_layer(state, layer + 1, thread, kKeepers);
  auto* words = reinterpret_cast<uint4*>(state.row(layer + 1, 0));
  const int count = static_cast<int>(args.layout.set_bytes / sizeof(uint4));
  for (int i = static_cast<int>(blockIdx.x) * kKeepers + thread; i < count;
       i += static_cast<int>(gridDim.x) * kKeepers) {
    words[i] = {};
  }
  fence_gpu();  // zeros are everyone's before this block goes on
  barrier_sync(kKeepersBarrier, kKeepers);
  if (is_last) return;
  if (thread < 32) plan_attention<kHeadDim, kKeyBits, kValueBits>(state, layer + 1);
  prefetch_layer(state.layer(layer + 1), thread / 32, kKeepers / 32);
}

}  // namespace quarot::cuda::step
