// Packed codes from shared memory to the float16 fragments of mma_f16, with one logical operation a
// pair and no conversion: the bits of a code, masked in place, are read as a subnormal float16, so
// a code v counts as v·2⁻²⁴, and one that lies `shift` bits higher as v·2^(shift − 24). Those
// powers of two leave through float32 factors (or the query), so the products are exact.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace quarot::cuda {

// What multiplies the float32 sum of products of codes read as above.
template <int kBits>
inline constexpr float kCodeUnit = kBits == 16 ? 1.0F : 16777216.0F;
// Odd codes are left where they lie, `kBits` above the even ones (8 bits: they are moved).
template <int kBits>
inline constexpr float kOddFactor = kBits == 4   ? 16.0F
                                    : kBits == 2 ? 4.0F
                                                 : 1.0F;

// kBytes from an address aligned to their largest power-of-two divisor, at most 16.
template <int kBytes>
__device__ __forceinline__ void load_words(uint32_t (&words)[(kBytes + 3) / 4],
                                           const uint8_t* address) {
  constexpr int kUnit = (kBytes & -kBytes) < 16 ? (kBytes & -kBytes) : 16;
  if constexpr (kUnit >= 4) {
#pragma unroll
    for (int i = 0; i < kBytes / kUnit; ++i) {
      if constexpr (kUnit == 16) {
        const uint4 v = reinterpret_cast<const uint4*>(address)[i];
        words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
      } else if constexpr (kUnit == 8) {
        const uint2 v = reinterpret_cast<const uint2*>(address)[i];
        words[2 * i] = v.x, words[2 * i + 1] = v.y;
      } else {
        words[i] = reinterpret_cast<const uint32_t*>(address)[i];
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < (kBytes + 3) / 4; ++i) words[i] = 0;
#pragma unroll
    for (int i = 0; i < kBytes / kUnit; ++i) {
      uint32_t piece = address[i];
      if constexpr (kUnit == 2) piece = reinterpret_cast<const uint16_t*>(address)[i];
      words[i * kUnit / 4] |= piece << (8 * (i * kUnit % 4));
    }
  }
}

// Four consecutive codes, the unit-th of `words`, as the two registers one row of an A fragment
// takes in one k-step: codes (0, 2) and (1, 3), the latter times kOddFactor; float16 values stay
// (0, 1) and (2, 3).
template <int kBits>
__device__ __forceinline__ uint2 expand_unit(const uint32_t* words, int unit) {
  if constexpr (kBits == 16) {
    return {words[2 * unit], words[2 * unit + 1]};
  } else if constexpr (kBits == 8) {
    return {words[unit] & 0x00ff00ffU, words[unit] >> 8 & 0x00ff00ffU};
  } else if constexpr (kBits == 4) {
    const uint32_t x = __byte_perm(words[unit / 2], 0, unit % 2 == 0 ? 0x4140 : 0x4342);
    return {x & 0x000f000fU, x & 0x00f000f0U};
  } else {
    const uint32_t byte = words[unit / 4] >> (8 * (unit % 4)) & 0xffU;
    const uint32_t x = byte | byte << 12;
    return {x & 0x00030003U, x & 0x000c000cU};
  }
}
// Which of the four codes is half `half` of register `reg` above.
template <int kBits>
__device__ __forceinline__ constexpr int unit_element(int reg, int half) {
  return kBits == 16 ? 2 * reg + half : reg + 2 * half;
}

// Code i of 16 / kBits in both halves of `pair`, whose halves hold the codes of two tokens; an odd
// one times kOddFactor.
template <int kBits>
__device__ __forceinline__ uint32_t expand_pair(uint32_t pair, int i) {
  if constexpr (kBits == 16) {
    return pair;
  } else if constexpr (kBits == 8) {
    return pair >> (8 * i) & 0x00ff00ffU;
  } else if constexpr (kBits == 4) {
    return pair >> (i / 2 * 8) & (i % 2 == 0 ? 0x000f000fU : 0x00f000f0U);
  } else {
    return pair >> (i / 2 * 4) & (i % 2 == 0 ? 0x00030003U : 0x000c000cU);
  }
}

// How the dims of a value group of kDim meet the 16-row tiles of Vᵀ: lane group g = lane / 4
// supplies rows g and g + 8 of tile i. Where the eighth of a row is a whole number of 16-bit
// pieces, g takes consecutive dims, so that they load as wide words; else two neighbours a tile.
template <int kDim, int kBits>
struct ValueTiles {
  static constexpr bool kWide = kDim * kBits % 128 == 0;
  static constexpr int kTiles = kDim / 16;
  static constexpr int kWords = kWide ? (kDim / 8 * kBits / 8 + 3) / 4 : kTiles;

  __device__ static constexpr int dim(int tile, int g, int row) {
    return kWide ? g * (kDim / 8) + 2 * tile + row : 16 * tile + 2 * g + row;
  }
  // The codes of lane group g in one token's row.
  __device__ static void load(uint32_t (&words)[kWords], const uint8_t* row, int g) {
    if constexpr (kWide) {
      load_words<kDim / 8 * kBits / 8>(words, row + g * (kDim / 8 * kBits / 8));
    } else {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int bit = (16 * i + 2 * g) * kBits;
        words[i] = row[bit / 8] >> (bit % 8);
      }
    }
  }
  // The A fragment of a tile; words[j] belongs to the token of k-column 2t, 2t+1, 2t+8, 2t+9.
  __device__ static void fragment(uint32_t (&a)[4], const uint32_t (&words)[4][kWords], int tile) {
    constexpr int kPerPiece = kWide ? 16 / kBits : 2;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int element = 2 * tile + row;
      const int piece = element / kPerPiece;
      const int word = kWide ? piece / 2 : piece;
      const uint32_t half = kWide && piece % 2 == 1 ? 0x7632 : 0x5410;
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const uint32_t both = __byte_perm(words[2 * pair][word], words[2 * pair + 1][word], half);
        a[2 * pair + row] = expand_pair<kBits>(both, element % kPerPiece);
      }
    }
  }
};

}  // namespace quarot::cuda
