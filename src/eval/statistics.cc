#include "eval/statistics.h"

#include <cassert>
#include <cmath>
#include <limits>
#include <vector>

namespace quarot {

namespace {

double mean_of(std::span<const double> values) {
  double mean = 0;
  for (const double v : values) mean += v / static_cast<double>(values.size());
  return mean;
}

}  // namespace

double standard_deviation(std::span<const double> values) {
  if (values.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const double mean = mean_of(values);
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

Estimate estimate(std::span<const double> values) {
  if (values.empty()) return {0, standard_deviation(values)};
  return {mean_of(values),
          standard_deviation(values) / std::sqrt(static_cast<double>(values.size()))};
}

Estimate paired_difference(std::span<const double> a, std::span<const double> b) {
  assert(a.size() == b.size());
  std::vector<double> differences(a.size());
  for (size_t i = 0; i < a.size(); ++i) differences[i] = a[i] - b[i];
  return estimate(differences);
}

}  // namespace quarot
