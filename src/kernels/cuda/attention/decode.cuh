// Decode attention: one query a sequence, all query heads of a KV head at once, the cache cut into
// splits that blocks take apart (flash-decoding) and the last to finish puts together.
#pragma once

#include "kernels/cuda/attention/append.cuh"
#include "kernels/cuda/attention/unit_plan.cuh"
#include "kernels/cuda/attention/warp_decode.cuh"
#include "kernels/cuda/early_launch.cuh"

namespace quarot::cuda {

// What a team shares beside its ring.
template <int kHeadDim, int kKeyBits, int kValueBits>
struct DecodeTeam {
  uint64_t barriers[kAttentionWarps][DecodeTraits<kHeadDim, kKeyBits, kValueBits>::kStages];
  float2 stats[kAttentionWarps][kQueryTile];
  bool is_last;
};

template <int kHeadDim, int kKeyBits, int kValueBits>
using TeamRing = SliceRing<typename DecodeTraits<kHeadDim, kKeyBits, kValueBits>::Pages,
                           DecodeTraits<kHeadDim, kKeyBits, kValueBits>::kStages, 32>;

// Where a unit's slice begins in the pool; null past the last.
template <typename Traits>
__device__ __forceinline__ const uint8_t* slice_of(const DecodeArgs& args, const UnitPlan& plan,
                                                   int slice) {
  constexpr int kTokens = Traits::kSliceTokens;
  if (slice >= plan.slices) return nullptr;
  const int64_t page = plan.page_ids[slice * kTokens / kPageTokens];
  return args.pool + (page * args.kv_heads + plan.kv_head) * Traits::kLayout.block_bytes() +
         slice * kTokens % kPageTokens / kTileTokens * Traits::Pages::kTile;
}

// This warp's i-th slice into its ring, which has taken in `before` others; none past the last.
template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __forceinline__ void fill_slice(const DecodeArgs& args, const UnitPlan& plan,
                                           TeamRing<kHeadDim, kKeyBits, kValueBits>& ring,
                                           int before, int i) {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  ring.fill(before + i, slice_of<Traits>(args, plan, i * kAttentionWarps + team_thread() / 32));
}

template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __forceinline__ auto warp_ring(uint8_t* memory,
                                          DecodeTeam<kHeadDim, kKeyBits, kValueBits>& team) {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  const int warp = team_thread() / 32;
  return TeamRing<kHeadDim, kKeyBits, kValueBits>(
      memory + warp * Traits::kStages * Traits::Pages::kBytes, team.barriers[warp],
      static_cast<int>(threadIdx.x) % 32);
}

// The first of a unit's slices, on their way before its queries are known.
template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __forceinline__ void begin_unit(const DecodeArgs& args, const UnitPlan& plan,
                                           uint8_t* memory,
                                           DecodeTeam<kHeadDim, kKeyBits, kValueBits>& team,
                                           int filled) {
  auto ring = warp_ring(memory, team);
#pragma unroll
  for (int i = 0; i < DecodeTraits<kHeadDim, kKeyBits, kValueBits>::kStages; ++i) {
    fill_slice<kHeadDim, kKeyBits, kValueBits>(args, plan, ring, filled, i);
  }
}

// One team's part, after begin_unit, in three. `memory` is the team's ring and what comes after it;
// `heads` says where the new token's come from, how results pass on, and which team of a tile puts
// its splits together.
// First, where the new token is appended on the way: its heads. Older tokens are coming meanwhile;
// only the new one had to be waited for.
template <int kHeadDim, int kKeyBits, int kValueBits, typename Heads>
__device__ __forceinline__ void make_unit_token(const DecodeArgs& args, const UnitPlan& plan,
                                                uint8_t* memory, const Heads& heads) {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  heads.wait();
  make_token(args.heads,
             {plan.sequence, plan.length - 1, plan.first_head, plan.queries,
              plan.is_newest() ? plan.kv_head : -1,
              reinterpret_cast<__half*>(memory + Traits::kQueriesAt), memory + Traits::kNewRowAt},
             heads);
}

// Second: the softmax of each warp's tokens, into the team's memory. `filled` counts the slices
// that this warp's ring has taken in with units before.
template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __forceinline__ void attend_unit(const DecodeArgs& args, const UnitPlan& plan,
                                            uint8_t* memory,
                                            DecodeTeam<kHeadDim, kKeyBits, kValueBits>& team,
                                            int& filled) {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  constexpr int kTokens = Traits::kSliceTokens;
  const int warp = team_thread() / 32;
  auto ring = warp_ring(memory, team);
  const int before = filled;
  filled += plan.mine();
  const __half* q = args.q + plan.row(args) * kHeadDim;
  if (args.appends) {
    q = reinterpret_cast<const __half*>(memory + Traits::kQueriesAt);
    team_sync();
  }
  WarpDecode<kHeadDim, kKeyBits, kValueBits> state(q, plan.queries, args.scale_log2);
  for (int i = 0; i * kAttentionWarps + warp < plan.slices; ++i) {
    uint8_t* slice = ring.wait(before + i);
    const int at = plan.start + (i * kAttentionWarps + warp) * kTokens;
    if (args.appends && at + kTokens >= plan.length) {
      place_row<typename Traits::Pages>(memory + Traits::kNewRowAt, slice, plan.length - 1 - at);
      ring.meet();
    }
    if (at >= plan.begin && at + kTokens <= plan.end) {
#pragma unroll
      for (int i = 0; i < kTokens / kTileTokens; ++i) {
        state.add_tile(slice + i * Traits::Pages::kTile, LaneTokens());
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kTokens / kTileTokens; ++i) {
        const int first = at + i * kTileTokens;
        if (first + kTileTokens <= plan.begin || first >= plan.end) continue;
        state.add_tile(slice + i * Traits::Pages::kTile,
                       LaneTokens(plan.begin - first, plan.end - first));
      }
    }
    ring.meet();
    fill_slice<kHeadDim, kKeyBits, kValueBits>(args, plan, ring, before, i + Traits::kStages);
  }
  team_sync();  // the ring's memory is free
  state.store(team.stats[warp], reinterpret_cast<float*>(memory) + warp * kQueryTile * kHeadDim,
              plan.queries);
  team_sync();
}

// Third: the team's output, and the new token into the cache.
template <int kHeadDim, int kKeyBits, int kValueBits, typename Heads>
__device__ __forceinline__ void finish_unit(const DecodeArgs& args, const UnitPlan& plan,
                                            uint8_t* memory,
                                            DecodeTeam<kHeadDim, kKeyBits, kValueBits>& team,
                                            const Heads& heads) {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  const size_t tile = plan.tile;
  const size_t part = (tile * args.max_splits + plan.split) * args.tile_queries;
  const auto* sums = reinterpret_cast<const float*>(memory);
  float* out = args.out + plan.row(args) * kHeadDim;
  for (int i = team_thread(); i < plan.queries * kHeadDim; i += kAttentionThreads) {
    const int query = i / kHeadDim;
    float top = team.stats[0][query].x;
    for (int w = 1; w < kAttentionWarps; ++w) top = fmaxf(top, team.stats[w][query].x);
    float total = 0;
    float sum = 0;
    for (int w = 0; w < kAttentionWarps; ++w) {
      const float weight = exp2_approx(team.stats[w][query].x - top);
      total += weight * team.stats[w][query].y;
      sum += weight * sums[w * kQueryTile * kHeadDim + i];
    }
    if (plan.splits == 1) {
      heads.store(out + i, sum / total);
    } else {
      heads.store(args.sums + part * kHeadDim + i, sum);
      if (i % kHeadDim == 0) heads.store(args.stats + part + query, {top, total});
    }
  }
  if (args.appends && plan.is_newest() && team_thread() / 32 == kAttentionWarps - 1) {
    const int last = plan.length - 1;
    place_row<typename Traits::Pages>(memory + Traits::kNewRowAt,
                                      token_block(args.heads, plan.sequence, last, plan.kv_head),
                                      last % kPageTokens);
  }
  if (plan.splits == 1) return;
  if (!heads.merges(args.arrived + tile, plan.splits, plan.is_newest(), team.is_last)) return;
  merge_splits<kHeadDim>(args, tile, plan.first_split, plan.splits, plan.queries,
                         *reinterpret_cast<MergeScratch*>(memory), out, heads);
}

template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __forceinline__ void init_team(DecodeTeam<kHeadDim, kKeyBits, kValueBits>& team) {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  SliceRing<typename Traits::Pages, Traits::kStages, 32> ring(
      nullptr, team.barriers[team_thread() / 32], threadIdx.x % 32);
  ring.init();
  ring.meet();
}

template <int kHeadDim, int kKeyBits, int kValueBits>
__global__ void __launch_bounds__(kAttentionThreads,
                                  DecodeTraits<kHeadDim, kKeyBits, kValueBits>::kBlocks)
    decode_kernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ DecodeTeam<kHeadDim, kKeyBits, kValueBits> team;
  begin_early();
  if (!args.appends) wait_early();
  init_team(team);
  int filled = 0;
  const DecodeUnit unit{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.x),
                        static_cast<int>(gridDim.x), static_cast<int>(blockIdx.y)};
  const UnitPlan plan(args, unit, DecodeTraits<kHeadDim, kKeyBits, kValueBits>::kSliceTokens);
  if (plan.empty()) return;
  begin_unit(args, plan, shared, team, filled);
  if (args.appends) {
    make_unit_token<kHeadDim, kKeyBits, kValueBits>(args, plan, shared, StoredHeads());
  }
  attend_unit(args, plan, shared, team, filled);
  finish_unit(args, plan, shared, team, StoredHeads());
}

}  // namespace quarot::cuda
