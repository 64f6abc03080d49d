// What the three quantisers share: how a range of values becomes a Grid, and the loops over one row
// or group that use it.
#pragma once

#include <cstdint>
#include <span>

#include "base/function_ref.h"
#include "quant/quantizer.h"

namespace quarot {

// min(0, min x) and max(0, max x), NaN passed over, limited to ±FLT_MAX/2 so that neither a range
// nor scale·(q − zero) can overflow.
struct Extent {
  float lowest = 0;
  float highest = 0;
};
Extent extent(std::span<const float> x);

// The grids of an extent multiplied by the clip ratio `ratio`. Asymmetric: q in [lowest,
// lowest + 2^bits − 1].
Grid symmetric_grid(const Extent& extent, float ratio, int bits);
Grid asymmetric_grid(const Extent& extent, float ratio, int bits, int32_t lowest);

// A Grid as the loops want it: the level q − zero lies in [lowest, highest].
struct Levels {
  explicit Levels(const Grid& grid)
      : scale(grid.scale),
        lowest(static_cast<float>(grid.lowest - grid.zero)),
        highest(static_cast<float>(grid.highest - grid.zero)) {}

  // NaN becomes 0.
  float in_units(float x) const {
    const float t = x / scale;
    return t == t ? t : 0.0F;
  }

  // Clamping first gives the same level, since rounding is monotone and keeps integers, and it
  // bounds the operand. For |t| < 2^22, t + 1.5·2^23 lies where neighbouring floats are 1 apart, so
  // the addition itself rounds t to an integer, half to even (the default rounding mode), and the
  // subtraction is exact; −0 does not survive. That is two additions in any vector unit, where
  // SSE2 has no rounding instruction.
  float round(float t) const {
    t = t > lowest ? t : lowest;
    t = t < highest ? t : highest;
    return (t + 0x1.8p23F) - 0x1.8p23F;
  }

  float nearest(float x) const { return round(in_units(x)); }

  float scale, lowest, highest;
};

void simulate(const Grid& grid, std::span<float> x);
void to_levels(const Grid& grid, std::span<float> x);  // q − zero
// q modulo 256: the bytes of int8_t or uint8_t alike.
void quantize(const Grid& grid, std::span<const float> x, uint8_t* q);
inline void quantize(const Grid& grid, std::span<const float> x, int8_t* q) {
  quantize(grid, x, reinterpret_cast<uint8_t*>(q));
}

// body(row, g) for every group of every row of a matrix, in parallel.
void for_each_group(int64_t rows, int64_t width, int64_t group,
                    FunctionRef<void(int64_t, int64_t)> body);

// Fills values, scales and zeros of any of the quantised types; grid_of(group) gives the Grid.
template <typename Quantized, typename GridOf>
void quantize_groups(ConstMatrixRef rows, int64_t group, const GridOf& grid_of, Quantized& out) {
  const int64_t groups = rows.cols() / group;
  out.values.resize(rows.rows(), rows.cols());
  out.scales.resize(rows.rows(), groups);
  out.zeros.resize(rows.rows(), groups);
  for_each_group(rows.rows(), rows.cols(), group, [&](int64_t r, int64_t g) {
    const auto x = rows.row(r).subspan(g * group, group);
    const Grid grid = grid_of(x);
    out.scales(r, g) = grid.scale;
    out.zeros(r, g) = grid.zero;
    quantize(grid, x, &out.values(r, g * group));
  });
}

}  // namespace quarot
