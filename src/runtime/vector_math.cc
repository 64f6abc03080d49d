#include "runtime/vector_math.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/simd.h"

namespace quarot {

namespace {

// Sums run in this many independent lanes, added up at the end: the same order on every instruction
// set.
constexpr size_t kLanes = 16;

using Lanes = std::array<float, kLanes>;

inline float sum(const Lanes& lanes) {
  float total = 0;
  for (const float lane : lanes) total += lane;
  return total;
}

// exp to about 1e-7 relative for x in [−87, 88]; clamped outside. x = n·ln 2 + r with |r| ≤ ln 2/2;
// a Taylor polynomial of degree 7 for e^r, 2^n through the exponent bits.
inline float fast_exp(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // exact in 10 bits: n·kLn2High does not round
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5·2²³: adding and taking it rounds to an integer
  x = std::min(std::max(x, -87.0F), 88.0F);
  const float n = (x * kLog2E + kRound) - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const auto exponent = static_cast<int32_t>(n);
  return p * std::bit_cast<float>((exponent + 127) << 23);
}

inline float maximum(std::span<const float> x) {
  Lanes lanes;
  lanes.fill(-INFINITY);
  const size_t whole = x.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] = std::max(lanes[j], x[i + j]);
  }
  for (size_t i = whole; i < x.size(); ++i) lanes[0] = std::max(lanes[0], x[i]);
  return *std::ranges::max_element(lanes);
}

}  // namespace

QUAROT_SIMD_CLONES float log_sum_exp(std::span<const float> x) {
  const float shift = maximum(x);
  const size_t whole = x.size() / kLanes * kLanes;
  Lanes lanes{};
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += fast_exp(x[i + j] - shift);
  }
  for (size_t i = whole; i < x.size(); ++i) lanes[0] += fast_exp(x[i] - shift);
  return shift + std::log(sum(lanes));
}

QUAROT_SIMD_CLONES void add(std::span<const float> x, std::span<float> y) {
  for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
}

QUAROT_SIMD_CLONES void subtract(std::span<const float> x, std::span<float> y) {
  for (size_t i = 0; i < y.size(); ++i) y[i] -= x[i];
}

QUAROT_SIMD_CLONES void scale_sums(std::span<const float> sums, float a, std::span<const float> w,
                                   bool first, std::span<float> y) {
  if (first) {
    for (size_t i = 0; i < y.size(); ++i) y[i] = (sums[i] * a) * w[i];
  } else {
    for (size_t i = 0; i < y.size(); ++i) y[i] += (sums[i] * a) * w[i];
  }
}

QUAROT_SIMD_CLONES void to_float(std::span<const int8_t> values, int32_t zero, float* y) {
  for (size_t i = 0; i < values.size(); ++i) y[i] = static_cast<float>(values[i] - zero);
}

}  // namespace quarot
