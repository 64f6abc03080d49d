// What a team of decode does, worked out once.
#pragma once

#include "kernels/cuda/attention/splits.cuh"

namespace quarot::cuda {

// What a team works on: up to 8 query heads of a KV head, over one split of a sequence.
struct DecodeUnit {
  int sequence;
  int tile;   // KV heads × query tiles
  int tiles;  // of a sequence
  int split;
};

// All that follows from it.
struct UnitPlan {
  int sequence;
  int split;
  int length;
  int begin;   // the first token attended to, of all splits
  int start;   // of this one's pages
  int end;     // of its tokens
  int slices;  // its team brings in
  int first_split;
  int splits;
  int kv_head;
  int first_head;  // of its queries
  int queries;
  int tile;  // of all sequences
  const int32_t* page_ids;

  UnitPlan() = default;
  __device__ UnitPlan(const DecodeArgs& args, const DecodeUnit& unit, int slice_tokens)
      : sequence(unit.sequence),
        split(unit.split),
        length(args.lengths[sequence]),
        begin(args.window > 0 ? max(0, length - args.window) : 0),
        kv_head(unit.tile / args.query_tiles),
        tile(unit.sequence * unit.tiles + unit.tile) {
    const SplitRange range(length, begin);
    first_split = range.first;
    splits = range.count;
    end = range.end(split, length);
    const int first_page = max(split << range.log2, begin) / kPageTokens;
    start = first_page * kPageTokens;
    slices = (end - start + slice_tokens - 1) / slice_tokens;
    const int first_query = (unit.tile - kv_head * args.query_tiles) * kQueryTile;
    queries = min(kQueryTile, args.group - first_query);
    first_head = kv_head * args.group + first_query;
    page_ids = args.page_table + static_cast<size_t>(sequence) * args.table_stride + first_page;
  }
  __device__ bool empty() const { return start >= end; }
  __device__ bool is_newest() const { return end == length; }
  // Slices go round the warps, this one's i-th is slice i · kAttentionWarps + warp.
  __device__ int mine() const {
    return (max(slices - team_thread() / 32, 0) + kAttentionWarps - 1) / kAttentionWarps;
  }
  // Where its queries, and its output, begin.
  __device__ size_t row(const DecodeArgs& args) const {
    return static_cast<size_t>(sequence) * args.kv_heads * args.group + first_head;
  }
};

}  // namespace quarot::cuda
