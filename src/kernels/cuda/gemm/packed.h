// How int4 operands lie in memory for the GPU GEMMs: one layout of the weights for every path.
//
// Weights [n, k] are cut into blocks of 16 rows × 64 columns, each the operand A of tensor-core
// instructions: mma m16n8k32 (two of them), mma m16n8k64 in int4 (one), or a warp's part of wgmma
// m64nNk32 (two). A block is 512 bytes: 16 for each lane of a warp, so that one 16-byte load a lane
// brings it in. Blocks lie row-block by row-block, along k within each:
//   bytes of block (r, c) start at (r · ceil(k / 64) + c) · 512; rows and columns beyond n and k
//   are zero.
// Lane (g, t) = (lane / 4, lane % 4) holds four 32-bit words; byte i of word 2h + s (h, s in {0,
// 1}) holds, of row g + 8s,
//   low nibble:  column 32h +      4t + i
//   high nibble: column 32h + 16 + 4t + i
// Masked in place, a word's high nibbles are four int8 of 16 times their value in the order int8
// fragments want, and so are its low nibbles once shifted; the whole word is an int4 fragment.
//
// Packed int4 activations [m, k]: of each 32 channels byte j (0…15) holds channel j in its low and
// channel 16 + j in its high nibble: the same order as above, so int4 needs no shuffling either.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/matrix.h"

namespace quarot::cuda {

inline constexpr int kBlockRows = 16;
inline constexpr int kBlockColumns = 64;
inline constexpr int kBlockBytes = kBlockRows * kBlockColumns / 2;

constexpr int64_t row_blocks(int64_t n) { return (n + kBlockRows - 1) / kBlockRows; }
constexpr int64_t column_blocks(int64_t k) { return (k + kBlockColumns - 1) / kBlockColumns; }
constexpr int64_t packed_weight_bytes(int64_t n, int64_t k) {
  return row_blocks(n) * column_blocks(k) * kBlockBytes;
}

// values [n, k] in −8…7, as QuantizedWeight of 4 symmetric bits holds them; packed has
// packed_weight_bytes(n, k) bytes.
void pack_weight(MatrixView<const int8_t> values, std::span<uint8_t> packed);

// values [m, k] in −8…7, k a multiple of 32; packed has m · k / 2 bytes.
void pack_activations(MatrixView<const int8_t> values, std::span<uint8_t> packed);

}  // namespace quarot::cuda
