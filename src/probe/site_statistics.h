// How loud a linear's inputs are: the numbers that say whether a site has outliers.
#pragma once

#include <array>
#include <vector>

#include "model/space.h"
#include "tensor/matrix.h"

namespace quarot {

// Where the probe looks: what the linears read, and what the cache holds.
inline constexpr std::array kPoints = {kSites[0], kSites[1],   kSites[2],
                                       kSites[3], Space::kKey, Space::kValue};
inline constexpr size_t kKeyPoint = 4;
inline constexpr size_t kValuePoint = 5;

// Above this a channel is an outlier to LLM.int8() (Dettmers et al. 2022, section 3.2).
inline constexpr double kLoudThreshold = 6.0;

struct SiteStatistics {
  double peak_over_rms = 0;  // mean over tokens of max|x| / RMS(x): about 3 for a Gaussian row
  double kurtosis = 0;       // mean x⁴ / (mean x²)², over all elements: 3 for a Gaussian
  double loudest = 0;        // the largest |x| seen
  double norm = 0;           // Frobenius
  double incoherence = 0;  // μ, max|x|·√elements / norm (QuIP, Chee et al. 2023, definition 1)
  int64_t loud_channels = 0;  // with an element above kLoudThreshold
  std::vector<double> channel_peak, channel_rms;
};

SiteStatistics site_statistics(ConstMatrixRef rows);

// μ of a matrix.
double incoherence(ConstMatrixRef matrix);

// Mean over the layers of the first three; of `loudest` the largest.
SiteStatistics mean_statistics(const std::vector<const SiteStatistics*>& layers);

double norm_of(ConstMatrixRef rows);                  // Frobenius
double distance(ConstMatrixRef a, ConstMatrixRef b);  // ‖a − b‖

// ‖a − b‖ / ‖b‖; 0 for b = 0.
double relative_distance(ConstMatrixRef a, ConstMatrixRef b);

// An activation far above all others of its token (Sun et al. 2024, "Massive Activations").
struct LoudElement {
  int64_t row = 0;
  int64_t channel = 0;
  double value = 0;
  double over_median = 0;  // |x| / median |x| of the row

  bool massive() const { return over_median >= 1000 && (value > 100 || value < -100); }
};

// The loudest element of each row.
std::vector<LoudElement> loudest_of_rows(ConstMatrixRef rows);

}  // namespace quarot
