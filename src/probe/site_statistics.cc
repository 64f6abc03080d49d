#include "probe/site_statistics.h"

#include <algorithm>
#include <cmath>

namespace quarot {

namespace {

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

}  // namespace

SiteStatistics site_statistics(ConstMatrixRef rows) {
  SiteStatistics result;
  const auto width = static_cast<size_t>(rows.cols());
  result.channel_peak.resize(width, 0.0);
  result.channel_rms.resize(width, 0.0);
  double squares = 0;
  double fourths = 0;
  for (int64_t r = 0; r < rows.rows(); ++r) {
    double row_squares = 0;
    double peak = 0;
    for (size_t c = 0; c < width; ++c) {
      const double x = std::abs(double{rows.row(r)[c]});
      row_squares += x * x;
      fourths += x * x * x * x;
      peak = std::max(peak, x);
      result.channel_peak[c] = std::max(result.channel_peak[c], x);
      result.channel_rms[c] += x * x;
    }
    squares += row_squares;
    result.loudest = std::max(result.loudest, peak);
    const double rms = std::sqrt(row_squares / static_cast<double>(width));
    result.peak_over_rms += ratio(peak, rms) / static_cast<double>(rows.rows());
  }
  for (double& sum : result.channel_rms) sum = std::sqrt(sum / static_cast<double>(rows.rows()));
  const auto count = static_cast<double>(rows.rows() * rows.cols());
  result.kurtosis = ratio(fourths / count, (squares / count) * (squares / count));
  result.norm = std::sqrt(squares);
  result.incoherence = ratio(result.loudest * std::sqrt(count), result.norm);
  result.loud_channels =
      std::ranges::count_if(result.channel_peak, [](double x) { return x > kLoudThreshold; });
  return result;
}

double incoherence(ConstMatrixRef matrix) {
  double squares = 0;
  double peak = 0;
  for (int64_t r = 0; r < matrix.rows(); ++r) {
    for (const float x : matrix.row(r)) {
      squares += double{x} * x;
      peak = std::max(peak, std::abs(double{x}));
    }
  }
  return ratio(peak * std::sqrt(static_cast<double>(matrix.rows() * matrix.cols())),
               std::sqrt(squares));
}

SiteStatistics mean_statistics(const std::vector<const SiteStatistics*>& layers) {
  SiteStatistics mean;
  const auto n = static_cast<double>(layers.size());
  for (const SiteStatistics* layer : layers) {
    mean.peak_over_rms += layer->peak_over_rms / n;
    mean.kurtosis += layer->kurtosis / n;
    mean.loudest = std::max(mean.loudest, layer->loudest);
  }
  return mean;
}

double norm_of(ConstMatrixRef rows) {
  double squares = 0;
  for (int64_t r = 0; r < rows.rows(); ++r) {
    for (const float x : rows.row(r)) squares += double{x} * x;
  }
  return std::sqrt(squares);
}

double distance(ConstMatrixRef a, ConstMatrixRef b) {
  double squares = 0;
  for (int64_t r = 0; r < b.rows(); ++r) {
    for (int64_t c = 0; c < b.cols(); ++c) {
      const double d = double{a(r, c)} - b(r, c);
      squares += d * d;
    }
  }
  return std::sqrt(squares);
}

double relative_distance(ConstMatrixRef a, ConstMatrixRef b) {
  return ratio(distance(a, b), norm_of(b));
}

std::vector<LoudElement> loudest_of_rows(ConstMatrixRef rows) {
  std::vector<LoudElement> elements;
  std::vector<float> magnitudes(static_cast<size_t>(rows.cols()));
  for (int64_t r = 0; r < rows.rows(); ++r) {
    std::ranges::transform(rows.row(r), magnitudes.begin(), [](float x) { return std::abs(x); });
    const auto channel = std::ranges::max_element(magnitudes) - magnitudes.begin();
    const auto middle = magnitudes.begin() + rows.cols() / 2;
    const double peak = magnitudes[static_cast<size_t>(channel)];
    std::ranges::nth_element(magnitudes, middle);
    elements.push_back({r, channel, rows(r, channel), ratio(peak, *middle)});
  }
  return elements;
}

}  // namespace quarot
