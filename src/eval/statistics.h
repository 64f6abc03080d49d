// Means of samples and what is known about them.
#pragma once

#include <span>

namespace quarot {

struct Estimate {
  double mean = 0;
  double standard_error = 0;  // NaN, unknown, for fewer than two values
};

// The mean of the values, each counting alike.
Estimate estimate(std::span<const double> values);

// The spread of the values themselves, √(Σ(x − mean)²/(n − 1)); NaN for fewer than two.
double standard_deviation(std::span<const double> values);

// The mean of a[i] − b[i]: two models on the same windows or items. What makes one window harder
// than another cancels, so that the standard error is far below that of either mean, and a
// difference of more than two of it decides which model is better. `a` and `b` are of equal size.
Estimate paired_difference(std::span<const double> a, std::span<const double> b);

}  // namespace quarot
