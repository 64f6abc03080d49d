// The paged KV cache, byte by byte. A pool is an array of pages; a page holds kPageTokens tokens of
// one layer, as one contiguous block for each KV head:
//
//   pool  = [page][kv_head] block
//   block = [token / 16] tile
//   tile  = K codes   [token % 16][head_dim · key_bits / 8]    packed, low bits first
//           V codes   [token % 16][head_dim · value_bits / 8]
//           K params  [group][token % 16] uint32                absent where the codes are float16
//           V params  [group][token % 16] uint32                likewise
//
// so that any run of tiles, up to the block, is one bulk copy and a tile is one step of the
// kernels.
//
// A code of b ∈ {2, 4, 8} bits is the quantiser's integer (DESIGN.md section 4; 3 bits are stored
// as 4, 5…7 as 8), and stands for scale·(code − zero). 16 bits store the value itself, as float16.
// A param word holds both: scale is the float32 whose bits are the word's upper 24 (the lower 8
// zero: a relative error of 2⁻¹⁷), zero is the lower 8. A group is head_dim elements, 128 where
// head_dim is larger. So a 4-bit block of 128 dims has 64·(64 + 64 + 4 + 4) = 8704 bytes, 4.25 bits
// an element.
//
// A sequence has a row of page ids; token i lies in page table[i / kPageTokens]. A pool is zeroed
// once when it is made, so that the float16 tail of a page never holds a NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace quarot::cuda {

inline constexpr int kPageTokens = 64;
inline constexpr int kTileTokens = 16;

// How many bits a code of `bits` occupies: 2, 4, 8 or 16.
constexpr int stored_bits(int bits) { return bits <= 2 ? 2 : bits <= 4 ? 4 : bits <= 8 ? 8 : 16; }

struct PageLayout {
  int head_dim = 128;
  int key_bits = 4;  // stored bits
  int value_bits = 4;

  constexpr int groups() const { return head_dim > 128 ? head_dim / 128 : 1; }
  constexpr int key_row_bytes() const { return head_dim * key_bits / 8; }
  constexpr int value_row_bytes() const { return head_dim * value_bits / 8; }
  constexpr int key_groups() const { return key_bits < 16 ? groups() : 0; }
  constexpr int value_groups() const { return value_bits < 16 ? groups() : 0; }

  // Offsets in a tile.
  constexpr int values() const { return kTileTokens * key_row_bytes(); }
  constexpr int key_params() const { return values() + kTileTokens * value_row_bytes(); }
  constexpr int value_params() const { return key_params() + 4 * kTileTokens * key_groups(); }

  constexpr int tile_bytes() const { return value_params() + 4 * kTileTokens * value_groups(); }
  constexpr int block_bytes() const { return kPageTokens / kTileTokens * tile_bytes(); }

  // Offsets in a block, of what one token (0 … 63) has; its params' groups are 4 · kTileTokens
  // bytes apart.
  constexpr int tile(int token) const { return token / kTileTokens * tile_bytes(); }
  constexpr int key_row(int token) const {
    return tile(token) + token % kTileTokens * key_row_bytes();
  }
  constexpr int value_row(int token) const {
    return tile(token) + values() + token % kTileTokens * value_row_bytes();
  }
  constexpr int key_param(int token) const {
    return tile(token) + key_params() + token % kTileTokens * 4;
  }
  constexpr int value_param(int token) const {
    return tile(token) + value_params() + token % kTileTokens * 4;
  }
};

// Scale and zero in one word.
struct QuantParam {
  float scale;
  int zero;
};
constexpr uint32_t pack_param(float scale, int zero) {
  const uint32_t bits = std::bit_cast<uint32_t>(scale) + 0x80U;  // rounds to 24 bits
  return (bits & 0xffffff00U) | static_cast<uint32_t>(zero);
}
constexpr QuantParam unpack_param(uint32_t word) {
  return {std::bit_cast<float>(word & 0xffffff00U), static_cast<int>(word & 0xffU)};
}

}  // namespace quarot::cuda
