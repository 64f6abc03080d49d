// What one head vector of q, k or v goes through, by the lanes of a warp that hold it.
#pragma once

#include <bit>

#include "kernels/cuda/fused/butterflies.cuh"
#include "kernels/cuda/fused/heads.h"
#include "kernels/cuda/fused/row_pass.cuh"

namespace quarot::cuda {

inline constexpr int kGroupLanes = 128 / kVector;  // lanes whose elements share a scale, at most

struct HeadArgs {
  HeadBatch batch;
  Rotary rotary;
  HeadRotation rotation;
  CacheWriter cache;
  __half* q_out;
  int lanes;  // of a head vector: a power of two, eight elements each
};
inline HeadArgs head_args(const HeadBatch& batch, const Rotary& rotary,
                          const HeadRotation& rotation, const CacheWriter& cache, __half* q_out) {
  const int vectors = cache.layout.head_dim / kVector;
  return {batch, rotary, rotation,
          cache, q_out,  static_cast<int>(std::bit_ceil(static_cast<unsigned>(vectors)))};
}

// A head vector has `lanes` neighbouring lanes, a power of two; lane i of them has elements
// 8i … 8i + 7, none if that is past the head_dim; or, where a lane has two vectors, those and their
// like in the head's second half. Every lane of a warp reaches every shuffle.
struct HeadLane {
  int i;
  int lanes;
  int dim;

  __device__ bool active() const { return i * kVector < dim; }
  // The place of this lane's vector j among the head's.
  __device__ int vector(int j) const { return i + j * (dim / 2 / kVector); }
};

// x / √(mean x² + eps) · gain over a head; lanes past the head_dim hold zeros.
__device__ __forceinline__ void norm_head(const float* gain, float eps, const HeadLane& lane,
                                          float (&x)[kVector]) {
  float squares = 0;
#pragma unroll
  for (const float e : x) squares += e * e;
  for (int mask = 1; mask < lane.lanes; mask *= 2) squares += __shfl_xor_sync(~0U, squares, mask);
  const float factor = rsqrtf(__fdividef(squares, static_cast<float>(lane.dim)) + eps);
  if (!lane.active()) return;
  RawVector<float> raw;
  raw.load(gain + lane.i * kVector);
  float g[kVector];
  raw.expand(g);
#pragma unroll
  for (int e = 0; e < kVector; ++e) x[e] *= factor * g[e];
}

// x of a pair, turned; `turn` is (cos, ±sin).
__device__ __forceinline__ float turned(float x, float partner, float2 turn) {
  return __fmaf_rn(x, turn.x, __fmul_rn(partner, turn.y));
}

// (cos, ±sin) of this lane's elements, so that x · cos + partner · ±sin turns them; (1, 0) where
// nothing turns. Interleaved, partners are neighbours in the lane.
struct LaneTurn {
  float2 turn[kVector];
  int partner;  // the lane with the other halves of the pairs

  __device__ LaneTurn(const Rotary& rotary, int row_index, const HeadLane& lane) {
    const int at = lane.i * kVector;
    const int half = rotary.dims / 2;
    const bool turns = at < rotary.dims;
    const bool first = at < half;
    partner = !turns ? lane.i : first ? lane.i + half / kVector : lane.i - half / kVector;
#pragma unroll
    for (float2& c : turn) c = {1, 0};
    if (!turns) return;
    const float2* row = rotary.table + static_cast<int64_t>(row_index) * half;
    if (rotary.interleaved) {
#pragma unroll
      for (int e = 0; e < kVector; e += 2) {
        const float2 c = row[(at + e) / 2];
        turn[e] = {c.x, -c.y};
        turn[e + 1] = c;
      }
      return;
    }
    const auto* pairs = reinterpret_cast<const float4*>(row + (first ? at : at - half));
    const float sign = first ? -1.0F : 1.0F;
#pragma unroll
    for (int e = 0; e < kVector; e += 2) {
      const float4 two = pairs[e / 2];
      turn[e] = {two.x, sign * two.y};
      turn[e + 1] = {two.z, sign * two.w};
    }
  }
  __device__ void apply(bool interleaved, const HeadLane& lane, float (&x)[kVector]) const {
    float other[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      other[e] = interleaved ? x[e ^ 1] : __shfl_sync(~0U, x[e], partner, lane.lanes);
    }
#pragma unroll
    for (int e = 0; e < kVector; ++e) x[e] = turned(x[e], other[e], turn[e]);
  }
};

// 1 / √(2^log2), the same wherever the compiler knows log2 and where it does not.
__device__ __forceinline__ float walsh_scale(int log2) {
  const float half = __uint_as_float(static_cast<unsigned>(127 - (log2 + 1) / 2) << 23);
  return log2 % 2 == 0 ? half : half * 1.41421356F;
}

// Of heads of 2^log2.
__device__ __forceinline__ void walsh_head(int log2, float (&x)[kVector]) {
  butterflies<1>(x);
  butterflies<2>(x);
  butterflies<4>(x);
  for (int bit = 3; bit < log2; ++bit) lane_butterflies(x, 1U << (bit - 3));
  const float scale = walsh_scale(log2);
#pragma unroll
  for (float& e : x) e = __fmul_rn(e, scale);
}

// Any F ⊗ Walsh, plainly; `scratch` holds the head vector in shared memory.
__device__ __forceinline__ void rotate_head(const HeadRotation& rotation, const HeadLane& lane,
                                            float (&x)[kVector], float* scratch) {
  const int columns = 1 << rotation.log2;
  const float scale = rsqrtf(static_cast<float>(columns));
  if (lane.active()) {
#pragma unroll
    for (int e = 0; e < kVector; ++e) scratch[lane.i * kVector + e] = x[e] * scale;
  }
  __syncwarp();
  if (lane.active()) {
#pragma unroll 1
    for (int e = 0; e < kVector; ++e) {
      const int at = lane.i * kVector + e;
      const float* factor = rotation.factor + at / columns * rotation.m;
      float sum = 0;
      for (int r = 0; r < rotation.m; ++r) {
        for (int c = 0; c < columns; ++c) {
          const float term = factor[r] * scratch[r * columns + c];
          sum += __popc(c & at & (columns - 1)) % 2 == 0 ? term : -term;
        }
      }
      x[e] = sum;
    }
  }
  __syncwarp();
}

static __device__ __noinline__ float round_quotient(float x, float scale) {
  return rintf(__fdiv_rn(x, scale));
}

// Codes of 0 … `highest`, of x / scale + zero: clamped as int16.
class CodePacker {
 public:
  __device__ explicit CodePacker(int highest)
      : highest_(static_cast<uint32_t>(highest) * 0x10001U) {}
  // Four, a byte each; their low halves are the codes before clamping.
  __device__ uint32_t four(const uint32_t* codes) const {
    return __byte_perm(pair(codes[0], codes[1]), pair(codes[2], codes[3]), 0x6420);
  }

 private:
  __device__ uint32_t pair(uint32_t a, uint32_t b) const {
    return __vmins2(__vmaxs2(__byte_perm(a, b, 0x5410), 0), highest_);
  }
  uint32_t highest_;
};

// Eight codes, a byte each, as element group `at` of a row that stores `stored` bits.
__device__ __forceinline__ void store_codes_of_eight(int stored, uint32_t first, uint32_t last,
                                                     uint8_t* row, int at) {
  if (stored == 8) {
    reinterpret_cast<uint2*>(row)[at] = {first, last};
    return;
  }
  const uint32_t low = (first & 0x00ff00ffU) | (first >> (8 - stored) & (0x00ff00ffU << stored));
  const uint32_t high = (last & 0x00ff00ffU) | (last >> (8 - stored) & (0x00ff00ffU << stored));
  const auto join = [&](uint32_t w) { return (w & 0xffffU) | w >> (16 - 2 * stored); };
  const uint32_t word = (join(low) & 0xffffU) | (join(high) & 0xffffU) << (4 * stored);
  if (stored == 4) reinterpret_cast<uint32_t*>(row)[at] = word;
  if (stored == 2) reinterpret_cast<uint16_t*>(row)[at] = static_cast<uint16_t>(word);
}

// DESIGN.md section 4's cache quantiser. As in RowQuantizer, products with the reciprocal a little
// high and a little low settle all but near-ties, which the division decides.
template <int kCount>
__device__ __forceinline__ void store_quantized(const HeadLane& lane, bool counts, int bits,
                                                int stored, float clip, const float (&x)[kCount],
                                                uint8_t* row, uint8_t* params) {
  constexpr float kRound = 12582912.0F;  // 1.5 · 2²³
  constexpr float kSpread = 0x1p-20F;
  float top = 0;
  float bottom = 0;
#pragma unroll
  for (const float e : x) {
    top = fmaxf(top, e);
    bottom = fminf(bottom, e);
  }
#pragma unroll
  for (int mask = 1; mask < kGroupLanes; mask *= 2) {
    if (mask >= lane.lanes) break;
    top = fmaxf(top, __shfl_xor_sync(~0U, top, mask));
    bottom = fminf(bottom, __shfl_xor_sync(~0U, bottom, mask));
  }
  if (!counts || !lane.active()) return;
  top = __fmul_rn(clip, top);
  bottom = __fmul_rn(clip, bottom);
  const SmallDivisor divisor((1 << bits) - 1);
  const float scale = top == bottom ? 1.0F : divisor.divide(__fsub_rn(top, bottom));
  const float inverse = __fdividef(1.0F, scale);
  const float above = inverse * (1 + kSpread);
  const float below = inverse * (1 - kSpread);
  float zero = __fmaf_rn(-bottom, above, kRound) - kRound;
  if (zero != __fmaf_rn(-bottom, below, kRound) - kRound) zero = round_quotient(-bottom, scale);
  uint32_t codes[kCount];
  uint32_t differ = 0;
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    codes[e] = __float_as_uint(__fmaf_rn(x[e], above, kRound + zero));
    differ |= codes[e] ^ __float_as_uint(__fmaf_rn(x[e], below, kRound + zero));
  }
  if (differ != 0) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      codes[e] = __float_as_uint(round_quotient(x[e], scale) + zero + kRound);
    }
  }
  const CodePacker packer((1 << bits) - 1);
#pragma unroll
  for (int j = 0; j < kCount / kVector; ++j) {
    const uint32_t* eight = codes + j * kVector;
    store_codes_of_eight(stored, packer.four(eight), packer.four(eight + 4), row, lane.vector(j));
  }
  if (lane.i % kGroupLanes == 0) {
    reinterpret_cast<uint32_t*>(params)[lane.i / kGroupLanes * kTileTokens] =
        pack_param(scale, static_cast<int>(zero));
  }
}

template <int kCount>
__device__ __forceinline__ void store_halves(const HeadLane& lane, const float (&x)[kCount],
                                             void* to) {
  if (!lane.active()) return;
#pragma unroll
  for (int j = 0; j < kCount / kVector; ++j) {
    const float* e = x + j * kVector;
    static_cast<uint4*>(to)[lane.vector(j)] = {pack_half2(e[0], e[1]), pack_half2(e[2], e[3]),
                                               pack_half2(e[4], e[5]), pack_half2(e[6], e[7])};
  }
}

// Norm, rotary and H; `scratch` is for those H that are not plain Walsh ones, which kGeneral says.
template <bool kGeneral>
__device__ __forceinline__ void turn_head(const HeadArgs& args, const float* gain,
                                          const LaneTurn& turn, const HeadLane& lane,
                                          float (&x)[kVector], float* scratch) {
  if (gain != nullptr) norm_head(gain, args.batch.eps, lane, x);
  if (args.rotary.dims > 0) turn.apply(args.rotary.interleaved, lane, x);
  if constexpr (kGeneral) {
    rotate_head(args.rotation, lane, x, scratch);
  } else if (args.rotation.m == 1) {
    walsh_head(args.rotation.log2, x);
  }
}

enum class Role { kQuery, kKey, kValue };

// − centre, quantised, into the page of this position.
template <int kCount>
__device__ __forceinline__ void append(Role role, const CacheWriter& cache, uint8_t* block, int row,
                                       int head, bool counts, const HeadLane& lane,
                                       float (&x)[kCount]) {
  const bool is_value = role == Role::kValue;
  const PageLayout& layout = cache.layout;
  const float* center = is_value ? cache.value_center : cache.key_center;
  if (center != nullptr && lane.active()) {
#pragma unroll
    for (int j = 0; j < kCount / kVector; ++j) {
      RawVector<float> raw;
      raw.load(center + head * lane.dim + lane.vector(j) * kVector);
      float c[kVector];
      raw.expand(c);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        x[j * kVector + e] = __fsub_rn(x[j * kVector + e], c[e]);
      }
    }
  }
  const int stored = is_value ? layout.value_bits : layout.key_bits;
  uint8_t* codes = block + (is_value ? layout.value_row(row) : layout.key_row(row));
  if (stored == 16) {
    if (counts) store_halves(lane, x, codes);
    return;
  }
  store_quantized(lane, counts, is_value ? cache.value_bits : cache.key_bits, stored,
                  is_value ? cache.value_clip : cache.key_clip, x, codes,
                  block + (is_value ? layout.value_param(row) : layout.key_param(row)));
}

}  // namespace quarot::cuda
