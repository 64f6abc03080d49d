// AMX's tiles, and weights as they lie in them.
//
// AMX multiplies a tile of 16 rows × 64 activations by a tile of 64 inputs × 16 outputs, whose row
// i holds inputs 4i…4i+3 of each output: the packed layout, once nibbles are spread to bytes. A
// group of weights may end inside a tile: all its tiles then have 32 inputs.
//
// Registers: sums 0…3 (two tiles of rows × two of outputs), activations 4 and 5, weights 6 and 7.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/gemm_task.h"
#include "kernels/cpu/unroll.h"

namespace quarot::cpu {
namespace {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kBlockRows = 2 * kTileRows;
inline constexpr int64_t kBlockSums = kBlockRows * kTileOutputs;

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// GCC's intrinsics do not tell the compiler what they read or write (all of a configuration, all
// rows of a tile): what was written there must be in memory before them, and is read after them.
inline void settle(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

// Tiles of `rows` activations (1 … 32), `inputs` inputs deep.
inline void configure(int64_t rows, int64_t inputs) {
  TileConfig c;
  const int64_t upper = rows < kTileRows ? rows : kTileRows;
  const int64_t lower = rows > kTileRows ? rows - kTileRows : upper;
  for (int i = 0; i < 8; ++i) c.row_bytes[i] = 64;
  c.rows[0] = c.rows[1] = c.rows[4] = static_cast<uint8_t>(upper);
  c.rows[2] = c.rows[3] = c.rows[5] = static_cast<uint8_t>(lower);
  c.row_bytes[4] = c.row_bytes[5] = static_cast<uint16_t>(inputs);
  c.rows[6] = c.rows[7] = static_cast<uint8_t>(inputs / 4);
  settle(&c);
  _tile_loadconfig(&c);
}

// `inputs` inputs of 32 packed outputs as signed bytes in tiles `depth` inputs deep: one of the
// first 16 outputs, one of the others, then the next inputs. Signed, they need no correction.
template <int kBits>
void spread(const uint8_t* packed, int64_t inputs, int64_t depth, int8_t* tiles) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(1 << (kBits - 1)));
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int64_t k = 0; k < inputs; k += depth, tiles += depth * kTileOutputs) {
    for (int64_t i = 0; i < depth; i += 8, packed += 32 * kBits) {
      unroll<2>([&](auto half) {
        __m512i low = _mm512_loadu_si512(packed + half * 64);
        __m512i high = low;
        if constexpr (kBits == 4) {
          low = _mm512_and_si512(low, nibble);
          high = _mm512_and_si512(_mm512_srli_epi16(high, 4), nibble);
        } else {
          high = _mm512_loadu_si512(packed + 128 + half * 64);
        }
        int8_t* out = tiles + (half * depth + i) * kTileRows;
        _mm512_store_si512(out, _mm512_sub_epi8(low, offset));
        _mm512_store_si512(out + 64, _mm512_sub_epi8(high, offset));
      });
    }
  }
}

}  // namespace
}  // namespace quarot::cpu
