// How decode cuts a sequence into splits, and puts their partial softmaxes together.
#pragma once

#include <cuda_fp16.h>

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

// Depends on nothing but the sequence's length.
__host__ __device__ constexpr int split_pages(int length) {
  int pages = kSplitPages;
  while (pages * kPageTokens * kMaxSplits < length) pages *= 2;
  return pages;
}

struct DecodeArgs {
  const __half* q;
  const uint8_t* pool;
  const int32_t* page_table;
  const int32_t* lengths;
  int table_stride;
  int kv_heads;
  int group;  // query heads a KV head serves
  int query_tiles;
  int window;
  float scale_log2;  // softmax scale · log2 e
  unsigned* arrived;
  float2* stats;  // [tile of a sequence][split][query]: maximum and denominator
  float* sums;    // [tile of a sequence][split][query][dim]
  int max_splits;
  float* out;
  bool appends;  // q is not read: q, k and v are as `heads` says, a token a sequence
  HeadArgs heads;
};

// All but q, appends and heads of an attention over this cache.
Result<DecodeArgs> decode_args(const PagedCache& cache, const AttentionShape& shape,
                               void* workspace, float* out);

// The last team of a sequence's tile sums what the others left. `weights` holds
// kMaxSplits · kQueryTile floats, `scratch` kAttentionThreads float4.
template <int kHeadDim, typename Heads>
__device__ void merge_splits(const DecodeArgs& args, size_t tile, int first_split, int splits,
                             int queries, float* weights, float4* scratch, float* out,
                             const Heads& heads) {
  constexpr int kLanes = kAttentionThreads / kQueryTile;
  constexpr int kMine = kMaxSplits / kLanes;
  const int thread = team_thread();
  const int query = thread / kLanes;
  const size_t base = tile * args.max_splits + first_split;
  float2 stat[kMine];
  float top = -FLT_MAX;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int split = thread % kLanes + i * kLanes;
    const bool there = split < splits && query < queries;
    stat[i] =
        there ? __ldcg(&args.stats[(base + split) * kQueryTile + query]) : make_float2(-FLT_MAX, 0);
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
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    weights[(thread % kLanes + i * kLanes) * kQueryTile + query] = stat[i].x * inverse;
  }
  team_sync();
  // Where there are fewer vectors of four than threads, several share one, each with every
  // `parts`-th split.
  const int vectors = queries * kHeadDim / 4;
  const int parts = max(1, kAttentionThreads / vectors);
  for (int from = 0; from < vectors; from += kAttentionThreads) {
    const int i = from + thread % vectors;
    const int part = parts > 1 ? thread / vectors : 0;
    const int q = i / (kHeadDim / 4);
    const int dim = i % (kHeadDim / 4) * 4;
    float4 sum = {0, 0, 0, 0};
    if (i < vectors && part < parts) {
#pragma unroll 8
      for (int split = part; split < splits; split += parts) {
        const float4 add = __ldcg(reinterpret_cast<const float4*>(
            &args.sums[((base + split) * kQueryTile + q) * kHeadDim + dim]));
        const float weight = weights[split * kQueryTile + q];
        sum.x += weight * add.x;
        sum.y += weight * add.y;
        sum.z += weight * add.z;
        sum.w += weight * add.w;
      }
    }
    if (parts > 1) {
      scratch[thread] = sum;
      team_sync();
      for (int other = 1; other < parts && part == 0; ++other) {
        const float4 add = scratch[other * vectors + i];
        sum.x += add.x, sum.y += add.y, sum.z += add.z, sum.w += add.w;
      }
    }
    if (i < vectors && part == 0) {
      heads.store(out + q * kHeadDim + dim, sum);
    }
  }
}

}  // namespace quarot::cuda
