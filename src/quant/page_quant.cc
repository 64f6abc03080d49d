#include "quant/page_quant.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace quarot {

namespace {

// NaN has no place in an order: it counts as infinitely far.
float ordered(double distance) {
  return std::isnan(distance) ? INFINITY : static_cast<float>(distance);
}

// How far each value lies from the mean of its group, in standard deviations.
Matrix distances(int64_t group, ConstMatrixRef rows) {
  Matrix distance(rows.rows(), rows.cols());
  for (int64_t r = 0; r < rows.rows(); ++r) {
    for (int64_t c = 0; c < rows.cols(); c += group) {
      const auto x = rows.row(r).subspan(static_cast<size_t>(c), static_cast<size_t>(group));
      double sum = 0;
      double squares = 0;
      for (const float value : x) {
        sum += value;
        squares += double{value} * value;
      }
      const double mean = sum / static_cast<double>(group);
      const double variance = squares / static_cast<double>(group) - mean * mean;
      const double unit = variance > 0 ? 1 / std::sqrt(variance) : 0;
      for (size_t i = 0; i < x.size(); ++i)
        distance(r, c + static_cast<int64_t>(i)) = ordered(std::abs(x[i] - mean) * unit);
    }
  }
  return distance;
}

// Elements from this distance on are outliers; infinity for none.
float outlier_distance(double part, const Matrix& distance) {
  const auto count = static_cast<int64_t>(part * static_cast<double>(distance.size()));
  if (count == 0) return INFINITY;
  std::vector<float> sorted(distance.elements().begin(), distance.elements().end());
  std::ranges::nth_element(sorted, sorted.begin() + count - 1, std::greater());
  return sorted[static_cast<size_t>(count - 1)];
}

void simulate_group(int bits, float clip, float outlier, std::span<const float> distance,
                    std::span<float> x) {
  float a = INFINITY;
  float b = -INFINITY;
  for (size_t i = 0; i < x.size(); ++i) {
    if (distance[i] >= outlier) continue;
    a = std::min(a, x[i]);
    b = std::max(b, x[i]);
  }
  if (!(a < b)) return;  // all alike: exact
  const auto steps = static_cast<float>((1 << bits) - 1);
  const float scale = clip * (b - a) / steps;
  const float lowest = (a + b) / 2 - clip * (b - a) / 2;
  for (size_t i = 0; i < x.size(); ++i) {
    if (distance[i] >= outlier) continue;
    const float q = std::clamp(round_half_even((x[i] - lowest) / scale), 0.0F, steps);
    x[i] = lowest + scale * q;
  }
}

}  // namespace

void simulate_page(int bits, float clip, int64_t group, double outliers, MatrixRef rows) {
  const Matrix distance = distances(group, rows);
  const float outlier = outlier_distance(outliers, distance);
  for (int64_t r = 0; r < rows.rows(); ++r) {
    for (int64_t c = 0; c < rows.cols(); c += group) {
      const auto first = static_cast<size_t>(c);
      const auto count = static_cast<size_t>(group);
      simulate_group(bits, clip, outlier, distance.row(r).subspan(first, count),
                     rows.row(r).subspan(first, count));
    }
  }
}

Status check(const PageQuant& q, int64_t page_tokens) {
  if (q.recent < 0 || q.recent % page_tokens != 0) {
    return error(ErrorCode::kInvalidArgument,
                 "KV cache: {} recent tokens in float; choose a multiple of {}", q.recent,
                 page_tokens);
  }
  if (!(q.outliers >= 0 && q.outliers < 1)) {
    return error(ErrorCode::kInvalidArgument,
                 "KV cache: outliers are {} of a page; choose from 0 to below 1", q.outliers);
  }
  return {};
}

}  // namespace quarot
