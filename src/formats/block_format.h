// How stored elements become float32. Every element type of every format is a run of blocks along
// a row; for a plain number a block is one element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "quarot/status.h"

namespace quarot {

struct BlockFormat {
  std::string_view name;  // as the file format spells it
  int64_t block_elements;
  int64_t block_bytes;

  // blocks · block_bytes bytes, of any alignment, to blocks · block_elements floats. nullptr where
  // the size is known and the values are not numbers here.
  void (*decode)(const std::byte* data, int64_t blocks, float* out);

  // Bytes of a tensor of that shape. kCorrupt: a negative dimension, a last dimension that fills no
  // whole number of blocks, or a product beyond 2⁶³ even of its dimensions other than zero (so that
  // no product of some of them overflows either).
  Result<int64_t> bytes(std::span<const int64_t> shape) const;
};

// By the name in a safetensors header, or the type number in a GGUF; nullptr if there is no such.
const BlockFormat* safetensors_format(std::string_view dtype);
const BlockFormat* ggml_format(uint32_t type);

}  // namespace quarot
