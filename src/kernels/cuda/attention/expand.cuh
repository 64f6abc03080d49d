// Codes of the cache as float16 operands of wgmma: less their zero, so small integers, exactly.
//
// The eight codes c of an octet are expanded two at a time, c[i] and c[i + 4], with one logical
// operation and one addition or multiply-add: as the low bits of a float16 from 1024 to 2048 a code
// counts as 1024 + c, and s bits higher as 1024 + c·2ˢ. Pair i of four octets, 16 bytes, is one
// unit of a row: pair t of unit j is pair j % 4 of octet 4·(j / 4) + t. So the lane with columns
// 8j + 2t and 8j + 2t + 1 of every unit j, as mma's fragments have it, has whole octets.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/attention/codes.cuh"

namespace quarot::cuda {

inline constexpr int kPieceOctets = 4;  // of which a thread makes four units

// Pair i of an octet of float16 values, two in a word.
__device__ __forceinline__ uint32_t half_pair(const uint32_t* words, int i) {
  return __byte_perm(words[i / 2], words[2 + i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
}

template <int kBits>
class OctetExpander {
 public:
  __device__ explicit OctetExpander(uint32_t param) {
    const __half zero = __int2half_rn(static_cast<int>(param & 0xffU));
#pragma unroll
    for (int i = 0; i < kShifts; ++i) {
      offset_[i] = __half2half2(__hneg(zero + __float2half(1024.0F / (1 << (kBits * i)))));
    }
  }
  // Pair i of an octet, whose codes lie in `words` from the first bit on.
  __device__ uint32_t pair(const uint32_t* words, int i) const {
    uint32_t x = 0;
    int shift = 0;  // of the codes in x, in codes
    if constexpr (kBits == 8) {
      x = __byte_perm(words[0], words[1], 0x4000 | (4 + i) << 8 | i) & 0x00ff00ffU;
    } else if constexpr (kBits == 4) {
      shift = i % 2;
      x = (i < 2 ? words[0] : words[0] >> 8) & 0x000f000fU << 4 * shift;
    } else {
      shift = i;
      x = (words[0] | words[0] << 8) & 0x00030003U << 2 * shift;
    }
    x |= 0x64006400U;
    const auto value = reinterpret_cast<const __half2&>(x);
    const __half2 result =
        shift == 0 ? value + offset_[0]
                   : __hfma2(value, __float2half2_rn(1.0F / (1 << kBits * shift)), offset_[shift]);
    return reinterpret_cast<const uint32_t&>(result);
  }

 private:
  static constexpr int kShifts = kBits == 8 ? 1 : kBits == 4 ? 2 : 4;
  __half2 offset_[kShifts];
};

// Float16 values are taken as they are.
template <>
class OctetExpander<16> {
 public:
  __device__ explicit OctetExpander(uint32_t /*param*/) {}
  __device__ uint32_t pair(const uint32_t* words, int i) const { return half_pair(words, i); }
};

// A piece of a row, the four octets from `codes` on, as four units.
template <int kBits>
__device__ __forceinline__ void expand_piece(const uint8_t* codes, uint32_t param,
                                             uint4 (&units)[4]) {
  constexpr int kWords = kBits / 4;  // of an octet; two bits fill half a word
  uint32_t words[kPieceOctets][kWords > 0 ? kWords : 1];
  if constexpr (kBits == 2) {
    const auto v = *reinterpret_cast<const uint2*>(codes);
    words[0][0] = v.x & 0xffffU, words[1][0] = v.x >> 16;
    words[2][0] = v.y & 0xffffU, words[3][0] = v.y >> 16;
  } else {
    auto& flat = reinterpret_cast<uint32_t(&)[kPieceOctets * kWords]>(words);
    load_words<kBits * kPieceOctets>(flat, codes);
  }
  const OctetExpander<kBits> expander(param);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    units[i] = {expander.pair(words[0], i), expander.pair(words[1], i), expander.pair(words[2], i),
                expander.pair(words[3], i)};
  }
}

}  // namespace quarot::cuda
