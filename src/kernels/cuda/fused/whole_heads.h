// Heads as most models have them, of many tokens.
#pragma once

#include "kernels/cuda/fused/heads.h"

namespace quarot::cuda {

// Whether rotate_whole_heads takes them: heads of 64 or 128 that turn as a whole, element i with
// element i + head_dim / 2, that are not normed and whose H, if any, is a Walsh transform.
bool whole_heads(const HeadBatch& batch, const Rotary& rotary, const HeadRotation& rotation,
                 const CacheWriter& cache);

// rotate_and_append of such heads, to the same bits.
Status rotate_whole_heads(const HeadBatch& batch, const Rotary& rotary,
                          const HeadRotation& rotation, const CacheWriter& cache, __half* q_out,
                          cudaStream_t stream);

}  // namespace quarot::cuda
