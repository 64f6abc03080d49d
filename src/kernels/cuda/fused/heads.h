// Between the q, k, v projections and attention: head norm, rotary embedding, head Hadamard (R3),
// and the new tokens' keys and values quantised into the paged cache (kv_page.h). One launch for
// all.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/attention/kv_page.h"
#include "kernels/cuda/fused/fused.h"

namespace quarot::cuda {

struct Rotary {
  const float2* table = nullptr;  // [row][dims / 2]: (cos, sin), any frequency scaling inside
  int dims = 0;                   // the first `dims` of a head turn: a multiple of 16; 0: none
  bool interleaved = false;       // pairs (2i, 2i + 1); else (i, i + dims / 2)
  const int32_t* rows = nullptr;  // [token] row of the table; null: its position
};

// H = F ⊗ Walsh(2^log2) on a head of m · 2^log2 dims; m = 0: none.
struct HeadRotation {
  int m = 0;
  int log2 = 0;
  const float* factor = nullptr;  // m × m, orthonormal; not read if m = 1
};

struct HeadBatch {
  Element element = Element::kBFloat16;
  int tokens = 0;
  int query_heads = 0;
  int kv_heads = 0;
  const void* q = nullptr;  // [token][head][head_dim]; a token's rows start `stride` elements apart
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  const int32_t* sequences = nullptr;  // [token] row of the page table
  const int32_t* positions = nullptr;  // [token]
  // RMSNorm of each head of q and of k, before all else: [head_dim] gains, or null: none.
  const float* q_gain = nullptr;
  const float* k_gain = nullptr;
  float eps = 0;
};

struct CacheWriter {
  PageLayout layout;
  int key_bits = 4;  // the quantiser's; layout has the stored ones
  int value_bits = 4;
  float key_clip = 0.95F;
  float value_clip = 0.95F;
  const float* key_center = nullptr;  // [kv_head][head_dim], subtracted after rotation; or null
  const float* value_center = nullptr;
  void* pool = nullptr;
  const int32_t* page_table = nullptr;
  int table_stride = 0;
};

// Whether there are kernels for these; kUnsupported or kInvalidArgument, saying what.
Status check_heads(const HeadBatch& batch, const Rotary& rotary, const HeadRotation& rotation,
                   const CacheWriter& cache);

// q_out [token][query_head][head_dim] float16: norm, rotary, then H. The cache gets norm, rotary,
// H, − centre, quantised, of k; − centre, quantised, of v.
Status rotate_and_append(const HeadBatch& batch, const Rotary& rotary, const HeadRotation& rotation,
                         const CacheWriter& cache, __half* q_out, cudaStream_t stream);

}  // namespace quarot::cuda
