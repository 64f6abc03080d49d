// Decode attention: one query a sequence, all query heads of a KV head at once, the cache cut into
// splits that blocks take apart (flash-decoding) and the last to finish puts together.
//
// Scores are the A·B of mma_f16 with 16 tokens as rows and up to 8 query heads as columns; the
// output is Vᵀ·P, 16 dims as rows. Codes enter as they are (codes.cuh); with the key's scale and
// zero a score is s = scale·(Σ q·k − zero·Σ q). The value's scale joins the exponent,
// w = 2^(s + log2 scale_v − m), so that w, rounded to float16, always uses the top of its range;
// the value's zero leaves as −Σ w·zero, and the denominator is Σ w / scale_v.
#pragma once

#include <algorithm>
#include <cfloat>

#include "kernels/cuda/attention/append.cuh"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/codes.cuh"
#include "kernels/cuda/attention/page_ring.cuh"
#include "kernels/cuda/attention/splits.cuh"
#include "kernels/cuda/attention/unit_plan.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fused/half_mma.cuh"

namespace quarot::cuda {

template <int kHeadDim, int kKeyBits, int kValueBits>
struct DecodeTraits {
  static constexpr PageLayout kLayout{kHeadDim, kKeyBits, kValueBits};
  static constexpr int kGroups = kLayout.groups();
  static constexpr int kDim = kHeadDim / kGroups;  // of a group
  // A warp has its own slices, two or more under way; what the warps of kBlocks blocks hold then
  // covers the memory's latency and fits an SM, as their registers do.
  static constexpr int kBlocks = kValueBits < 16 && kHeadDim <= 128 ? 5 : 3;
  static constexpr int kSliceTokens = kLayout.block_bytes() <= 9 * 1024 ? 32 : 16;
  using Pages = Slice<kHeadDim, kKeyBits, kValueBits, kSliceTokens>;
  static constexpr int kStages = Pages::kBytes <= 5 * 512 ? 4 : 2;
  static constexpr int kRingBytes = kAttentionWarps * kStages * Pages::kBytes;
  static constexpr int kMergeBytes = kAttentionWarps * kQueryTile * kHeadDim * 4;
  static constexpr int kSharedBytes =
      std::max({kRingBytes, kMergeBytes, static_cast<int>(sizeof(MergeScratch))});
  // Behind that, where the new token is appended on the way.
  static constexpr int kQueriesAt = kSharedBytes;
  static constexpr int kNewRowAt = kQueriesAt + kQueryTile * kHeadDim * 2;
  static constexpr int kAppendBytes = kNewRowAt + kLayout.tile_bytes();
};

// One warp's part of the running softmax: 16 tokens at a time for 8 queries. Lane (g, t) holds the
// statistics of queries 2t and 2t + 1 over its own tokens; the maximum is the warp's.
template <int kHeadDim, int kKeyBits, int kValueBits>
class WarpDecode {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  static constexpr int kGroups = Traits::kGroups;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kSteps = kDim / 16;
  using Pages = typename Traits::Pages;
  using Tiles = ValueTiles<kDim, kValueBits>;

 public:
  __device__ WarpDecode(const __half* q, int queries, float scale_log2) : scale_log2_(scale_log2) {
    load_queries(q, queries);
  }

  // The tokens of a tile, of which those in [begin, end) count, unless kWhole, when all do.
  template <bool kWhole>
  __device__ void add_tile(const uint8_t* tile, int begin, int end) {
    const int token[2] = {tile_token(g_), 8 + tile_token(g_)};
    float s[4];
    scores(s, tile, token);
    float log_scale[2] = {0, 0};
    float inverse_scale[2] = {1, 1};
    float ratio[2][kGroups];
    float zero[2][kGroups];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const bool counts = kWhole || (token[row] >= begin && token[row] < end);
      if constexpr (kValueBits < 16) {
        float top = 0;
#pragma unroll
        for (int k = 0; k < kGroups; ++k) {
          const uint32_t word = Pages::value_param(tile, k, token[row]);
          ratio[row][k] = counts ? __uint_as_float(word & 0xffffff00U) : 1.0F;
          zero[row][k] = static_cast<float>(word & 0xffU);
          top = fmaxf(top, ratio[row][k]);
        }
        log_scale[row] = __log2f(top);
        inverse_scale[row] = __fdividef(1.0F, top);
      }
#pragma unroll
      for (int query = 0; query < 2; ++query) {
        float& score = s[2 * row + query];
        score = counts ? score + log_scale[row] : -INFINITY;
      }
    }
    raise_maximum(s);
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = exp2_approx(s[i] - maximum_[i % 2]);
      denominator_[i % 2] += w[i] * inverse_scale[i / 2];
    }
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      uint32_t p[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float share =
            kGroups > 1 && kValueBits < 16 ? ratio[row][k] * inverse_scale[row] : 1.0F;
        p[row] = pack_half2(w[2 * row] * share, w[2 * row + 1] * share);
        if constexpr (kValueBits < 16) {
          const float2 rounded = unpack_half2(p[row]);
          correction_[k][0] += rounded.x * zero[row][k];
          correction_[k][1] += rounded.y * zero[row][k];
        }
        p[row] = transpose_8x8(p[row]);
      }
      add_values(k, tile, p);
    }
  }

  // Maximum and denominator [query] and the sums [query][kHeadDim] of this warp.
  __device__ void store(float2* stats, float* sums, int queries) {
#pragma unroll
    for (int query = 0; query < 2; ++query) {
      denominator_[query] = sum_over_groups(denominator_[query]);
#pragma unroll
      for (int k = 0; k < kGroups; ++k) {
        correction_[k][query] = sum_over_groups(correction_[k][query]);
      }
      const int column = 2 * t_ + query;
      if (column >= queries) continue;
      if (g_ == 0) stats[column] = {maximum_[query], denominator_[query]};
#pragma unroll
      for (int i = 0; i < kGroups * Tiles::kTiles; ++i) {
        const int k = i / Tiles::kTiles;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float unit = kCodeUnit<kValueBits> / (row == 1 ? kOddFactor<kValueBits> : 1.0F);
          sums[column * kHeadDim + k * kDim + Tiles::dim(i % Tiles::kTiles, g_, row)] =
              sums_[i][2 * row + query] * unit - correction_[k][query];
        }
      }
    }
  }

 private:
  static __device__ float sum_over_groups(float x) {
#pragma unroll
    for (int lane = 4; lane < 32; lane *= 2) x += __shfl_xor_sync(~0U, x, lane);
    return x;
  }

  __device__ void load_queries(const __half* q, int queries) {
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      float sum = 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int dim = k * kDim + t_ * (kDim / 4) + 4 * step;
        __half value[4] = {};
        if (g_ < queries) {
          *reinterpret_cast<uint2*>(value) =
              *reinterpret_cast<const uint2*>(q + g_ * kHeadDim + dim);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sum += __half2float(value[i]);
#pragma unroll
        for (int reg = 0; reg < 2; ++reg) {
          const float factor = reg == 1 ? 1.0F / kOddFactor<kKeyBits> : 1.0F;
          queries_[k * kSteps + step][reg] =
              pack_half2(__half2float(value[unit_element<kKeyBits>(reg, 0)]) * factor,
                         __half2float(value[unit_element<kKeyBits>(reg, 1)]) * factor);
        }
      }
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      query_sum_[k][0] = __shfl_sync(~0U, sum, 8 * t_);
      query_sum_[k][1] = __shfl_sync(~0U, sum, 8 * t_ + 4);
    }
  }

  __device__ void scores(float (&s)[4], const uint8_t* tile, const int (&token)[2]) const {
    constexpr int kChunk = kDim / 4 * kKeyBits / 8;
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      uint32_t words[2][(kChunk + 3) / 4];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        load_words<kChunk>(words[row], Pages::key_row(tile, token[row]) + (4 * k + t_) * kChunk);
      }
      float part[2][4] = {};  // two chains, half as long
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint2 low = expand_unit<kKeyBits>(words[0], step);
        const uint2 high = expand_unit<kKeyBits>(words[1], step);
        const uint32_t a[4] = {low.x, high.x, low.y, high.y};
        mma_f16(part[step % 2], a, queries_[k * kSteps + step][0], queries_[k * kSteps + step][1]);
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float scale = scale_log2_;
        float zero = 0;
        if constexpr (kKeyBits < 16) {
          const uint32_t word = Pages::key_param(tile, k, token[row]);
          scale *= __uint_as_float(word & 0xffffff00U);
          zero = static_cast<float>(word & 0xffU);
        }
#pragma unroll
        for (int query = 0; query < 2; ++query) {
          const int i = 2 * row + query;
          const float product = (part[0][i] + part[1][i]) * kCodeUnit<kKeyBits>;
          const float score = scale * (product - zero * query_sum_[k][query]);
          s[i] = k == 0 ? score : s[i] + score;
        }
      }
    }
  }

  // Moves the reference of the exponents only where a score passes it by more than float16 can hold
  // with ease, which after the first tiles is rare.
  __device__ void raise_maximum(const float (&s)[4]) {
    constexpr float kSlack = 8;
    const float top[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
    const bool passed = top[0] > maximum_[0] + kSlack || top[1] > maximum_[1] + kSlack;
    if (!__any_sync(~0U, passed)) return;
#pragma unroll
    for (int query = 0; query < 2; ++query) {
      float raised = fmaxf(top[query], maximum_[query]);
#pragma unroll
      for (int lane = 4; lane < 32; lane *= 2) {
        raised = fmaxf(raised, __shfl_xor_sync(~0U, raised, lane));
      }
      const float factor = exp2_approx(maximum_[query] - raised);
      maximum_[query] = raised;
      denominator_[query] *= factor;
#pragma unroll
      for (int k = 0; k < kGroups; ++k) correction_[k][query] *= factor;
#pragma unroll
      for (int i = 0; i < kGroups * Tiles::kTiles; ++i) {
        sums_[i][query] *= factor;
        sums_[i][2 + query] *= factor;
      }
    }
  }

  __device__ void add_values(int k, const uint8_t* tile, const uint32_t (&p)[2]) {
    uint32_t words[4][Tiles::kWords];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // k-columns 2t, 2t+1, 2t+8, 2t+9
      const int token = tile_token(2 * t_ + i % 2) + i / 2 * 8;
      Tiles::load(words[i], Pages::value_row(tile, token) + k * (kDim * kValueBits / 8), g_);
    }
#pragma unroll
    for (int i = 0; i < Tiles::kTiles; ++i) {
      uint32_t a[4];
      Tiles::fragment(a, words, i);
      mma_f16(sums_[k * Tiles::kTiles + i], a, p[0], p[1]);
    }
  }

  const int g_ = threadIdx.x % 32 / 4;
  const int t_ = threadIdx.x % 4;
  float scale_log2_;
  uint32_t queries_[kGroups * kSteps][2];
  float query_sum_[kGroups][2];
  float sums_[kGroups * Tiles::kTiles][4] = {};
  float correction_[kGroups][2] = {};
  float maximum_[2] = {-FLT_MAX / 2, -FLT_MAX / 2};
  float denominator_[2] = {0, 0};
};

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

// This warp's i-th slice into its ring, which has taken in `before` others; none past the last.
template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __forceinline__ void fill_slice(const DecodeArgs& args, const UnitPlan& plan,
                                           TeamRing<kHeadDim, kKeyBits, kValueBits>& ring,
                                           int before, int i) {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  constexpr int kTokens = Traits::kSliceTokens;
  const int slice = i * kAttentionWarps + team_thread() / 32;
  const uint8_t* from = nullptr;
  if (slice < plan.slices) {
    const int64_t page = plan.page_ids[slice * kTokens / kPageTokens];
    from = args.pool + (page * args.kv_heads + plan.kv_head) * Traits::kLayout.block_bytes() +
           slice * kTokens % kPageTokens / kTileTokens * Traits::Pages::kTile;
  }
  ring.fill(before + i, from);
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
        state.template add_tile<true>(slice + i * Traits::Pages::kTile, 0, kTileTokens);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kTokens / kTileTokens; ++i) {
        const int first = at + i * kTileTokens;
        if (first + kTileTokens <= plan.begin || first >= plan.end) continue;
        state.template add_tile<false>(slice + i * Traits::Pages::kTile, plan.begin - first,
                                       plan.end - first);
      }
    }
    ring.meet();
    fill_slice<kHeadDim, kKeyBits, kValueBits>(args, plan, ring, before, i + Traits::kStages);
  }
  team_sync();  // the ring's memory is free
  state.store(team.stats[warp], reinterpret_cast<float*>(memory) + warp * kQueryTile * kHeadDim,
              plan.queries);
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
  team_sync();
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
