// Quantisers of a KV cache page by page (quant/page_quant.h), bit for bit, on a cache in float32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quarot/status.h"

namespace quarot::cuda {

// The keys, or the values, of the kPageTokens (kernels/cache_task.h) tokens of one page.
struct PageTask {
  float* x = nullptr;  // token i's heads are at x + i · stride
  int64_t stride = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int bits = 4;
  float clip = 1;
  bool by_channel = false;  // each channel of a head is a group, over the tokens
  int64_t group = 0;        // else: consecutive channels of a token, divides head_dim
  double outliers = 0;      // the part of a head's page that stays float

  // Keys quantised as they were before RoPE: (cos, sin) [kPageTokens][rotary / 2]; or null.
  const float2* rope = nullptr;
  int64_t rotary = 0;
};

// Quantised and dequantised in place. kUnsupported for heads that shared memory does not hold.
Status simulate_page(const PageTask& task, cudaStream_t stream);

}  // namespace quarot::cuda
