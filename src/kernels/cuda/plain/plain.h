// The operations of row_task.h and cache_task.h for any width, rotation, bits and groups, and the
// float operations around them: one block a row, float32 throughout, in the order and with the
// roundings of kernels/reference. What the fused kernels have no shape for runs on these, and so
// does simulated execution. Device pointers, those inside the tasks too; a task's `hadamard` itself
// is read at the launch. No allocation, no synchronisation.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cache_task.h"
#include "kernels/row_task.h"
#include "quarot/status.h"

namespace quarot::cuda {

// Values are padded with zeros to their stride; `sums` is not written. kUnsupported for a row that
// shared memory does not hold.
Status rows(const RowTask& task, cudaStream_t stream);

// Into y only: the cache has kernels of its own.
Status heads(const HeadsTask& task, cudaStream_t stream);

// x [rows, width] quantised and dequantised in place, each `group` elements on their own
// (quant/quantizer.h).
struct Simulation {
  int bits = 8;
  int64_t group = 0;  // divides the width
  float clip = 1;
  bool symmetric = true;
  // Not the first `width` channels of a row, but these, in their order; rows are `stride` apart.
  const int32_t* channels = nullptr;
  int64_t stride = 0;
};
Status simulate(const Simulation& quant, float* x, int64_t rows, int64_t width,
                cudaStream_t stream);

// largest [width] ← max |x| of each column of x [rows, width]; NaN is passed over.
Status largest_magnitudes(const float* x, float* largest, int64_t rows, int64_t width,
                          cudaStream_t stream);

// Each of x rounded to float16 and back.
Status round_to_half(float* x, int64_t count, cudaStream_t stream);

// y [rows, width] ← factor · table[tokens[row]]
Status embed(const float* table, const int32_t* tokens, float factor, float* y, int64_t rows,
             int64_t width, cudaStream_t stream);
Status embed(const __half* table, const int32_t* tokens, float factor, float* y, int64_t rows,
             int64_t width, cudaStream_t stream);

// Each row of x as two of y whose sum it is to 22 bits.
Status split_rows(const float* x, __half* y, int64_t rows, int64_t width, cudaStream_t stream);

// y[r] ← x[2r] + x[2r + 1]
Status add_pairs(const float* x, float* y, int64_t rows, int64_t width, cudaStream_t stream);

// y [rows, width] += bias
Status add_bias(const float* bias, float* y, int64_t rows, int64_t width, cudaStream_t stream);

// scores [heads][queries][keys] ← softmax(factor · scores), each query over the keys it sees: those
// at positions first_key … first_key + keys − 1 up to its own, position + its number, and no more
// than `window` of them (0: all). The others become 0.
struct Softmax {
  float* scores = nullptr;
  int64_t heads = 0;
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t position = 0;
  int64_t first_key = 0;
  int64_t window = 0;
  float factor = 1;
};
Status softmax(const Softmax& task, cudaStream_t stream);

// What rows of logits say of a token each.
struct RowScore {
  float logit;        // the token's
  float log_sum_exp;  // of the row
  int32_t greedy;     // 1: no logit is larger, and none before it as large
};
Status score_rows(const float* logits, const int32_t* targets, RowScore* scores, int64_t rows,
                  int64_t width, cudaStream_t stream);

}  // namespace quarot::cuda
