// How decode cuts a sequence into splits, and puts their partial softmaxes together.
#pragma once

#include <cuda_fp16.h>

#include <bit>
#include <cfloat>
#include <cstdint>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/page_ring.cuh"
#include "kernels/cuda/fused/half_mma.cuh"
#include "kernels/cuda/fused/heads.cuh"

namespace quarot::cuda {

inline constexpr int kSplitPages = 8;  // the least a block takes
inline constexpr int kMaxSplits = 32;  // longer sequences have longer splits instead
inline constexpr int kQueryTile = 8;   // query heads a block serves

// The splits of a sequence's tokens from `begin` on; where they lie depends on nothing but its
// length. A rest of less than half a split is the last one's too.
struct SplitRange {
  int log2;  // of a split's tokens
  int first;
  int count;

  __device__ SplitRange(int length, int begin) {
    static_assert(std::has_single_bit(unsigned{kSplitPages * kPageTokens * kMaxSplits}));
    constexpr int kLeast = std::countr_zero(unsigned{kSplitPages * kPageTokens});
    constexpr int kMost = std::countr_zero(unsigned{kMaxSplits});
    log2 = max(kLeast, 32 - __clz(length - 1) - kMost);
    const int all = max(1, (length + (1 << (log2 - 1))) >> log2);
    first = min(begin >> log2, all - 1);
    count = all - first;
  }
  // Of a split's tokens; none past the last.
  __device__ int end(int split, int length) const {
    const int after = split + 1 - first;
    return after < count ? (split + 1) << log2 : after == count ? length : 0;
  }
};

struct DecodeArgs {
  const __half* q;
  const uint8_t* pool;
  const int32_t* page_table;
  const int32_t* lengths;
  int table_stride;
  int kv_heads;
  int group;  // query heads a KV head serves
  int query_tiles;
  int tile_queries;  // query heads of a tile, but for the last
  int window;
  float scale_log2;  // softmax scale · log2 e
  unsigned* arrived;
  float2* stats;  // [tile of a sequence][split][query of a tile]: maximum and denominator
  float* sums;    // [tile of a sequence][split][query of a tile][dim]
  int max_splits;
  float* out;
  bool appends;  // q is not read: q, k and v are as `heads` says, a token a sequence
  HeadArgs heads;
};

// What decode's teams leave to be put together, at most.
struct DecodeParts {
  size_t tiles;
  int max_splits;
  int tile_queries;
  size_t count() const { return tiles * max_splits * tile_queries; }
};
DecodeParts decode_parts(const AttentionShape& shape, const PagedCache& cache);

// All but q, appends and heads of an attention over this cache.
Result<DecodeArgs> decode_args(const PagedCache& cache, const AttentionShape& shape,
                               void* workspace, float* out);

struct MergeScratch {
  float4 sums[kAttentionThreads];
  float weights[kMaxSplits * kQueryTile];
};

// One team of a sequence's tile sums what all of them left. `heads` says how the parts are read:
// fetch(), again until arrived() says that they are what the teams left.
template <int kHeadDim, typename Heads>
__device__ void merge_splits(const DecodeArgs& args, size_t tile, int first_split, int splits,
                             int queries, MergeScratch& scratch, float* out, const Heads& heads) {
  constexpr int kLanes = kAttentionThreads / kQueryTile;
  constexpr int kMine = kMaxSplits / kLanes;
  constexpr int kAtOnce = 8;
  const int thread = team_thread();
  const int query = thread / kLanes;
  const size_t base = tile * args.max_splits + first_split;
  // Where there are fewer vectors of four than threads, several share one, each with every
  // `parts`-th split.
  const int vectors = queries * kHeadDim / 4;
  const int parts = max(1, kAttentionThreads / vectors);
  const int part = parts > 1 ? thread / vectors : 0;
  const auto fetch = [&](int i, int split, float4(&sums)[kAtOnce]) {
    if (i >= vectors || part >= parts) return;
    const float* from = args.sums + (base * args.tile_queries * kHeadDim + i * 4);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = split + j * parts;
      if (at >= splits) continue;
      sums[j] =
          heads.fetch(reinterpret_cast<const float4*>(from + at * args.tile_queries * kHeadDim));
    }
  };
  const auto arrived = [&](int split, const float4(&sums)[kAtOnce]) {
    bool all = true;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (split + j * parts < splits) all = all && heads.arrived(sums[j]);
    }
    return all;
  };
  float4 sums[kAtOnce];
  fetch(thread % vectors, part, sums);  // with the stats
  float2 stat[kMine];
  float top = -FLT_MAX;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int split = thread % kLanes + i * kLanes;
    stat[i] = make_float2(-FLT_MAX, 0);
    if (split < splits && query < queries) {
      const float2* from = &args.stats[(base + split) * args.tile_queries + query];
      do {
        stat[i] = heads.fetch(from);
      } while (!heads.arrived(stat[i]));
    }
    top = fmaxf(top, stat[i].x);
  }
#pragma unroll
  for (int lane = 1; lane < kLanes; lane *= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, lane));
  float total = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    stat[i].x = exp2_approx(stat[i].x - top);
    total += stat[i].x * stat[i].y;
  }
#pragma unroll
  for (int lane = 1; lane < kLanes; lane *= 2) total += __shfl_xor_sync(~0U, total, lane);
  const float inverse = 1.0F / total;
  team_sync();  // what the scratch held is read
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    scratch.weights[(thread % kLanes + i * kLanes) * kQueryTile + query] = stat[i].x * inverse;
  }
  team_sync();
  for (int from = 0; from < vectors; from += kAttentionThreads) {
    const int i = from + thread % vectors;
    const int q = i / (kHeadDim / 4);
    const int dim = i % (kHeadDim / 4) * 4;
    float4 sum = {0, 0, 0, 0};
    if (i < vectors && part < parts) {
      for (int split = part; split < splits; split += kAtOnce * parts) {
        if (from > 0 || split > part) fetch(i, split, sums);
        while (!arrived(split, sums)) fetch(i, split, sums);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int at = split + j * parts;
          if (at >= splits) continue;
          const float weight = scratch.weights[at * kQueryTile + q];
          sum.x += weight * sums[j].x;
          sum.y += weight * sums[j].y;
          sum.z += weight * sums[j].z;
          sum.w += weight * sums[j].w;
        }
      }
    }
    if (parts > 1) {
      scratch.sums[thread] = sum;
      team_sync();
      for (int other = 1; other < parts && part == 0; ++other) {
        const float4 add = scratch.sums[other * vectors + i];
        sum.x += add.x, sum.y += add.y, sum.z += add.z, sum.w += add.w;
      }
    }
    if (i < vectors && part == 0) {
      heads.store(out + q * kHeadDim + dim, sum);
    }
  }
}

}  // namespace quarot::cuda
