#include "quant/quantizer.h"

#include <algorithm>
#include <cassert>

#include "base/error.h"
#include "quant/clip_search.h"
#include "quant/grid.h"

namespace quarot {

namespace {

constexpr int64_t kLargestCacheGroup = 128;

int32_t lowest_signed(int bits) { return -(1 << (bits - 1)); }

Grid grid_of(const ActivationQuant& q, std::span<const float> x) {
  return q.symmetric ? symmetric_grid(extent(x), q.clip, q.bits)
                     : asymmetric_grid(extent(x), q.clip, q.bits, lowest_signed(q.bits));
}

Grid grid_of(const CacheQuant& q, std::span<const float> x) {
  return asymmetric_grid(extent(x), q.clip, q.bits, 0);
}

Grid grid_of(const WeightQuant& q, std::span<const float> x) { return weight_grid(q, x); }

template <typename Quant>
void simulate_rows(const Quant& q, MatrixRef rows) {
  if (!q.enabled() || rows.empty()) return;
  const int64_t group = group_size(q, rows.cols());
  for_each_group(rows.rows(), rows.cols(), group, [&](int64_t r, int64_t g) {
    const auto x = rows.row(r).subspan(g * group, group);
    simulate(grid_of(q, x), x);
  });
}

template <typename Quant, typename Quantized>
void quantize_rows(const Quant& q, ConstMatrixRef rows, Quantized& out) {
  assert(check(q, rows.cols()).ok() && q.enabled());
  quantize_groups(
      rows, group_size(q, rows.cols()), [&](std::span<const float> x) { return grid_of(q, x); },
      out);
}

Status check_bits(const char* what, int bits) {
  if ((bits >= 2 && bits <= 8) || bits == kFloatBits) return {};
  return error(ErrorCode::kInvalidArgument, "{}: {} bits; choose 2 to 8, or {} not to quantise",
               what, bits, kFloatBits);
}

Status check_clip(const char* what, float clip) {
  if (clip > 0.0F && clip <= 1.0F) return {};
  return error(ErrorCode::kInvalidArgument, "{}: clip ratio {}; choose one above 0 and up to 1",
               what, clip);
}

Status check_group(const char* what, int64_t group, int64_t width) {
  if (width > 0 && group >= 0 && (group == 0 || width % group == 0)) return {};
  return error(
      ErrorCode::kInvalidArgument,
      "{}: groups of {} do not divide a width of {}; choose a divisor, or 0 for the default", what,
      group, width);
}

}  // namespace

void simulate(const ActivationQuant& q, MatrixRef rows) { simulate_rows(q, rows); }

Matrix to_levels(const ActivationQuant& q, MatrixRef rows) {
  const int64_t group = group_size(q, rows.cols());
  Matrix scales(rows.rows(), rows.cols() / group);
  for_each_group(rows.rows(), rows.cols(), group, [&](int64_t r, int64_t g) {
    const auto x = rows.row(r).subspan(g * group, group);
    const Grid grid = grid_of(q, x);
    scales(r, g) = grid.scale;
    to_levels(grid, x);
  });
  return scales;
}

QuantizedRows quantize(const ActivationQuant& q, ConstMatrixRef rows) {
  QuantizedRows result;
  quantize_rows(q, rows, result);
  return result;
}

void simulate(const CacheQuant& q, MatrixRef rows) { simulate_rows(q, rows); }

QuantizedCacheRows quantize(const CacheQuant& q, ConstMatrixRef rows) {
  QuantizedCacheRows result;
  quantize_rows(q, rows, result);
  return result;
}

Grid weight_grid(const WeightQuant& q, std::span<const float> row_or_group) {
  const Extent range = extent(row_or_group);
  const auto clipped = [&](float p) {
    return q.symmetric ? symmetric_grid(range, p, q.bits)
                       : asymmetric_grid(range, p, q.bits, lowest_signed(q.bits));
  };
  return q.search_clip ? search_clip(row_or_group, clipped) : clipped(q.clip);
}

QuantizedWeight round_to_nearest(const WeightQuant& q, ConstMatrixRef weight) {
  QuantizedWeight result;
  result.quant = q;
  quantize_rows(q, weight, result);
  return result;
}

Matrix QuantizedWeight::dequantize() const {
  Matrix result(values.rows(), values.cols());
  const int64_t group = group_size(quant, values.cols());
  for_each_group(values.rows(), values.cols(), group, [&](int64_t r, int64_t g) {
    const float scale = scales(r, g);
    const int32_t zero = zeros(r, g);
    for (int64_t c = g * group; c < (g + 1) * group; ++c) {
      result(r, c) = scale * static_cast<float>(values(r, c) - zero);
    }
  });
  return result;
}

int64_t group_size(const ActivationQuant& q, int64_t width) {
  return q.group > 0 ? q.group : width;
}

int64_t group_size(const WeightQuant& q, int64_t width) { return q.group > 0 ? q.group : width; }

int64_t group_size(const CacheQuant& q, int64_t head_dim) {
  if (q.group > 0) return q.group;
  int64_t group = std::min(head_dim, kLargestCacheGroup);
  while (group > 1 && head_dim % group != 0) --group;
  return group;
}

Status check(const ActivationQuant& q, int64_t width) {
  QUAROT_RETURN_IF_ERROR(check_bits("activations", q.bits));
  if (!q.enabled()) return {};
  QUAROT_RETURN_IF_ERROR(check_clip("activations", q.clip));
  return check_group("activations", q.group, width);
}

Status check(const WeightQuant& q, int64_t width) {
  QUAROT_RETURN_IF_ERROR(check_bits("weights", q.bits));
  if (!q.enabled()) return {};
  if (!q.search_clip) QUAROT_RETURN_IF_ERROR(check_clip("weights", q.clip));
  return check_group("weights", q.group, width);
}

Status check(const CacheQuant& q, int64_t head_dim) {
  QUAROT_RETURN_IF_ERROR(check_bits("KV cache", q.bits));
  if (!q.enabled()) return {};
  QUAROT_RETURN_IF_ERROR(check_clip("KV cache", q.clip));
  return check_group("KV cache", q.group, head_dim);
}

}  // namespace quarot
