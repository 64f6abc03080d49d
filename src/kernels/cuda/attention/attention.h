// Attention over the paged quantised KV cache (kv_page.h), from the softmax of q·k to the weighted
// sum of v; queries are float16, outputs float32. Nothing is allocated and nothing waits: the
// caller gives the stream and the workspace. A head of one sequence is summed in an order that
// depends on that sequence's length alone, so results do not depend on the rest of the batch.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/kv_page.h"
#include "kernels/cuda/fused/heads.h"
#include "quarot/status.h"

namespace quarot::cuda {

struct PagedCache {
  PageLayout layout;
  const void* pool = nullptr;           // [page][kv_head] blocks
  const int32_t* page_table = nullptr;  // [sequence][table_stride] page ids
  int table_stride = 0;
  const int32_t* lengths = nullptr;  // [sequence] tokens in the cache, the new included: ≥ 1
  int kv_heads = 0;
};

struct AttentionShape {
  int sequences = 0;
  int query_heads = 0;  // a multiple of kv_heads; head h reads KV head h / (query_heads / kv_heads)
  int max_length = 0;   // at least the longest of `lengths`; sets the grid
  int window = 0;       // a query at position p sees the last `window` positions up to p; 0: all
  float scale = 1;      // of the scores: 1/√head_dim
};

// Bytes decode needs; zeroed once by the caller, after which calls of any shape that needs no more
// may use them.
size_t decode_workspace_bytes(const AttentionShape& shape, const PagedCache& cache);

// One query a sequence, at position lengths[s] − 1. q, out: [sequence][query_head][head_dim].
// kUnsupported for a head_dim or bits nothing was built for.
Status attention_decode(const __half* q, const PagedCache& cache, const AttentionShape& shape,
                        void* workspace, float* out, cudaStream_t stream);

// The same of the one new token of each sequence, sequence s in row s of `batch`, whose queries,
// keys and values are as the projections, in float32, made them: it does what rotate_and_append
// does with them on the way, to the same bits. Reads the rest of the cache, the page table, the
// lengths and the rotary table before the kernels before it in the stream have ended: those must
// not write them.
Status append_and_decode(const HeadBatch& batch, const Rotary& rotary, const HeadRotation& rotation,
                         const CacheWriter& writer, const PagedCache& cache,
                         const AttentionShape& shape, void* workspace, float* out,
                         cudaStream_t stream);
// Whether it can, for this rotation of heads.
constexpr bool decode_appends(const HeadRotation& rotation) { return rotation.m <= 1; }

// A chunk of queries a sequence: rows query_starts[s] … query_starts[s + 1] of q and out,
// [row][query_head][head_dim], are the last tokens of sequence s. Causal. `max_queries` is at least
// the longest chunk.
Status attention_prefill(const __half* q, const int32_t* query_starts, int max_queries,
                         const PagedCache& cache, const AttentionShape& shape, float* out,
                         cudaStream_t stream);

}  // namespace quarot::cuda
