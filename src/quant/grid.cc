#include "quant/grid.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/parallel.h"
#include "base/simd.h"

namespace quarot {

namespace {

// Independent running extremes: a reduction over one of them would wait on itself, and compilers
// may not reorder it.
constexpr size_t kLanes = 16;

constexpr int64_t kElementsPerThread = 1 << 14;  // fewer are not worth waking one

constexpr float kLargest = FLT_MAX / 2;

// A range of zeros, or one so small that the scale is no normal number, has scale 1: its values are
// all 0 then, and no division meets 0, infinity or a denormal that some machines flush.
float usable(float scale) { return scale >= FLT_MIN ? scale : 1.0F; }

}  // namespace

float round_half_even(float x) {
  constexpr float kIntegersFrom = 0x1p23F;
  if (!(std::fabs(x) < kIntegersFrom)) return x;
  const float shift = std::copysign(kIntegersFrom, x);
  return std::copysign((x + shift) - shift, x);
}

QUAROT_SIMD_CLONES Extent extent(std::span<const float> x) {
  float lowest[kLanes] = {};
  float highest[kLanes] = {};
  const float* data = x.data();
  const size_t whole = x.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = data[i + lane];
      lowest[lane] = value < lowest[lane] ? value : lowest[lane];
      highest[lane] = value > highest[lane] ? value : highest[lane];
    }
  }
  for (size_t i = whole; i < x.size(); ++i) {
    lowest[0] = data[i] < lowest[0] ? data[i] : lowest[0];
    highest[0] = data[i] > highest[0] ? data[i] : highest[0];
  }
  return {std::max(*std::ranges::min_element(lowest), -kLargest),
          std::min(*std::ranges::max_element(highest), kLargest)};
}

Grid symmetric_grid(const Extent& extent, float ratio, int bits) {
  const int32_t highest = (1 << (bits - 1)) - 1;
  const float limit = ratio * std::max(-extent.lowest, extent.highest);
  return {.scale = usable(limit / static_cast<float>(highest)),
          .zero = 0,
          .lowest = -highest - 1,
          .highest = highest};
}

Grid asymmetric_grid(const Extent& extent, float ratio, int bits, int32_t lowest) {
  const int32_t steps = (1 << bits) - 1;
  const float x_min = ratio * extent.lowest;
  const float x_max = ratio * extent.highest;
  const float scale = usable((x_max - x_min) / static_cast<float>(steps));
  const auto zero = static_cast<int32_t>(round_half_even(-x_min / scale));
  return {.scale = scale, .zero = zero + lowest, .lowest = lowest, .highest = lowest + steps};
}

int32_t Grid::quantize(float w) const {
  return static_cast<int32_t>(Levels(*this).nearest(w)) + zero;
}

QUAROT_SIMD_CLONES void simulate(const Grid& grid, std::span<float> x) {
  const Levels levels(grid);
  float* data = x.data();
  for (size_t i = 0; i < x.size(); ++i) data[i] = levels.scale * levels.nearest(data[i]);
}

QUAROT_SIMD_CLONES void to_levels(const Grid& grid, std::span<float> x) {
  const Levels levels(grid);
  float* data = x.data();
  for (size_t i = 0; i < x.size(); ++i) data[i] = levels.nearest(data[i]);
}

QUAROT_SIMD_CLONES void quantize(const Grid& grid, std::span<const float> x, uint8_t* q) {
  const Levels levels(grid);
  const float* data = x.data();
  const int32_t zero = grid.zero;
  for (size_t i = 0; i < x.size(); ++i) {
    q[i] = static_cast<uint8_t>(static_cast<int32_t>(levels.nearest(data[i])) + zero);
  }
}

void for_each_group(int64_t rows, int64_t width, int64_t group,
                    FunctionRef<void(int64_t, int64_t)> body) {
  parallel_for(rows, kElementsPerThread / width + 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t g = 0; g < width / group; ++g) body(r, g);
    }
  });
}

}  // namespace quarot
