// What the prefill kernels are given.
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace quarot::cuda {

struct PrefillArgs {
  const __half* q;
  const int32_t* query_starts;
  const uint8_t* pool;
  const int32_t* page_table;
  const int32_t* lengths;
  int table_stride;
  int kv_heads;
  int group;
  int window;
  float scale_log2;
  float* out;
};

// By wgmma, for compute capability 9.0 and the head_dims below.
constexpr bool wgmma_prefills(int head_dim) { return head_dim == 64 || head_dim == 128; }
Status prefill_wgmma(const PrefillArgs& args, const PageLayout& layout, const AttentionShape& shape,
                     int max_queries, cudaStream_t stream);

}  // namespace quarot::cuda
