// The quantisers of DESIGN.md section 4, one definition each, on matrices only. "Simulated" means
// quantised and dequantised again in float32; the packed formats compute the same integers, and
// dequantising them gives the simulated values bit for bit.
//
// The arithmetic, in float32, each operation rounded on its own (IEEE 754 division, no reciprocal,
// no fused multiply-add); whoever computes the same integers elsewhere follows it to the letter:
//
//   lowest  = max(min(0, min x), −FLT_MAX/2)    over the row or group; NaN is passed over
//   highest = min(max(0, max x),  FLT_MAX/2)
//   symmetric    scale = (p·max(−lowest, highest)) / (2^(b−1) − 1), zero = 0
//   asymmetric   scale = (p·highest − p·lowest) / (2^b − 1), zero = round(−(p·lowest) / scale)
//   where the clip ratio p may be searched; a scale below FLT_MIN (a row of zeros) becomes 1
//   q = clamp(round(x / scale) + zero, …), x ≈ scale·(q − zero)
//
// round is half to even. A NaN becomes q = zero, that is 0; ±Inf becomes the end of the grid; what
// comes back is always finite.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quarot/status.h"
#include "tensor/matrix.h"

namespace quarot {

inline constexpr int kFloatBits = 16;  // 16 bits mean: not quantised

// Rounds half to even, whatever the rounding mode of the caller's build.
float round_half_even(float x);

// ---- Activations: per token (row), or per token and group of `group` consecutive channels.
struct ActivationQuant {
  int bits = kFloatBits;  // 2…8, or kFloatBits
  int64_t group = 0;      // 0: the whole row; else a divisor of the width
  float clip = 0.9F;
  bool symmetric = true;
  bool search_clip = false;  // instead, where calibrated: a ratio for each site of each layer

  bool enabled() const { return bits < kFloatBits; }
  // With the ratio and the bits that a site has of its own; 0: none.
  ActivationQuant with(float own_clip, int own_bits) const {
    ActivationQuant q = *this;
    if (own_clip > 0) q.clip = own_clip;
    if (own_bits > 0) q.bits = own_bits;
    return q;
  }
  bool operator==(const ActivationQuant&) const = default;
};

// Symmetric: q in −2^(b−1)…2^(b−1)−1; asymmetric: 0…2^b−1. p is `clip`. Like every function here
// that returns no Status, it expects check() to have passed.
void simulate(const ActivationQuant& q, MatrixRef rows);

// The same without the last multiplication: the rows become q − zero, the scales [t, n/group] are
// returned. Not for kFloatBits.
Matrix to_levels(const ActivationQuant& q, MatrixRef rows);

// The integers: values [t, n] (q − zero is what multiplies scale), scales and zeros [t, n/group].
// Not for kFloatBits.
struct QuantizedRows {
  BasicMatrix<int8_t> values;  // for asymmetric: q in 0…2^b−1 minus 2^(b−1), so that it fits int8
  Matrix scales;
  BasicMatrix<int32_t> zeros;  // in the same offset; 0 when symmetric
};
QuantizedRows quantize(const ActivationQuant& q, ConstMatrixRef rows);

// ---- Weights [out, in]: per output channel or per group along the input.
struct WeightQuant {
  int bits = kFloatBits;
  int64_t group = 0;  // 0: the whole row
  bool symmetric = true;
  bool search_clip = true;  // minimise Σ|q − w|^2.4 over p = 1 … 0.21 in 80 steps of 0.01
  float clip = 1.0F;        // the ratio when not searched

  bool enabled() const { return bits < kFloatBits; }
  bool operator==(const WeightQuant&) const = default;
};

// The grid of one row or group: w ≈ scale·(q − zero), q in [lowest, highest].
struct Grid {
  float scale = 1;
  int32_t zero = 0;
  int32_t lowest = 0;
  int32_t highest = 0;

  int32_t quantize(float w) const;  // as above
  float dequantize(int32_t q) const { return scale * static_cast<float>(q - zero); }
  float simulate(float w) const { return dequantize(quantize(w)); }
};
// Where p is searched, the sums are approximated to 1e-6 of themselves: a near-tie may go to either
// candidate, the same one everywhere.
Grid weight_grid(const WeightQuant& q, std::span<const float> row_or_group);

struct QuantizedWeight {
  WeightQuant quant;
  BasicMatrix<int8_t> values;  // [out, in]; symmetric −2^(b−1)…2^(b−1)−1; asymmetric minus 2^(b−1)
  Matrix scales;               // [out, in/group]
  BasicMatrix<int32_t> zeros;  // [out, in/group], in the same offset; 0 when symmetric

  Matrix dequantize() const;
};
// Not for kFloatBits.
QuantizedWeight round_to_nearest(const WeightQuant& q, ConstMatrixRef weight);

// ---- KV cache: asymmetric, per token and group of one head vector. DESIGN.md section 4.
struct CacheQuant {
  int bits = kFloatBits;
  float clip = 0.95F;
  int64_t group = 0;  // 0: head_dim, or its largest divisor up to 128

  bool enabled() const { return bits < kFloatBits; }
  bool operator==(const CacheQuant&) const = default;
};
// rows [n, head_dim], each a head vector of one token.
void simulate(const CacheQuant& q, MatrixRef rows);
struct QuantizedCacheRows {
  BasicMatrix<uint8_t> values;  // 0…2^b−1
  Matrix scales;                // [n, head_dim/group]
  BasicMatrix<int32_t> zeros;   // [n, head_dim/group]
};
QuantizedCacheRows quantize(const CacheQuant& q, ConstMatrixRef rows);  // not for kFloatBits

// The group in channels, where `group` may be 0.
int64_t group_size(const ActivationQuant& q, int64_t width);
int64_t group_size(const WeightQuant& q, int64_t width);
int64_t group_size(const CacheQuant& q, int64_t head_dim);

// kInvalidArgument with what is wrong: bits out of 2…8 or 16, a clip ratio out of (0, 1], a width
// that is not positive, a group that does not divide it.
Status check(const ActivationQuant& q, int64_t width);
Status check(const WeightQuant& q, int64_t width);
Status check(const CacheQuant& q, int64_t head_dim);

}  // namespace quarot
