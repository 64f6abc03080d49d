// What the driver of the product with a RowTable (table.h) hands to an instruction set.
#pragma once

#include <cstdint>

#include "quant/storage.h"

namespace quarot::cpu {

struct TableTask {
  int64_t rows = 0;
  const float* x = nullptr;  // [rows, cols], zeros behind to a whole number of words
  int64_t x_stride = 0;
  Storage storage = Storage::kF32;
  const uint32_t* words = nullptr;  // RowTable's
  const float* scales = nullptr;    // RowTable's, or null
  int64_t row_words = 0;
  int64_t group_words = 0;  // a row's words that share a scale
  int64_t groups = 1;
  const float* bias = nullptr;  // [outputs], or null
  int64_t outputs = 0;          // the table's rows
  float* y = nullptr;           // [rows, outputs]
  int64_t y_stride = 0;
  bool accumulate = false;
};

inline constexpr int64_t kTableTile = 16;          // outputs
inline constexpr int64_t kTablePanel = 4;          // tiles that a thread takes at once
inline constexpr int64_t kTableScratch = 1 << 15;  // floats a call needs

}  // namespace quarot::cpu
