// Tables of integers (quant/row_table.h) on the GPU, as they are stored: rows looked up, and
// multiplied by float rows. Device pointers. No allocation, no synchronisation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quarot/status.h"

namespace quarot::cuda {

// A RowTable's words and scales, of one scale a row. Behind the words there is memory of
// kTableSlack more, whatever it holds: a product reads the last tile in whole chunks.
struct IntegerTable {
  const uint32_t* words = nullptr;  // [⌈rows/16⌉][⌈cols/n⌉][16], n = 32/bits
  const float* scales = nullptr;    // [⌈rows/16⌉][16]
  int bits = 8;                     // or 4
  int64_t rows = 0;
  int64_t cols = 0;
};
inline constexpr int64_t kTableSlack = 48;  // words
inline constexpr int64_t kTableRows = 32;   // of x that one pass over the table multiplies

// y [count, cols] ← scale · integers of rows tokens[0], tokens[1], …: the bits of read_row().
Status embed(const IntegerTable& table, const int32_t* tokens, float* y, int64_t count,
             cudaStream_t stream);

// y [count, table.rows] ← x·tableᵀ, x [count, cols]. Elements of x count as sums of two float16 (to
// 22 bits), integers as they are; sums are float32 in an order that depends on nothing but the
// table's width, so that a row gives the same bits whatever else is in x.
Status multiply(const IntegerTable& table, const float* x, float* y, int64_t count,
                cudaStream_t stream);

}  // namespace quarot::cuda
