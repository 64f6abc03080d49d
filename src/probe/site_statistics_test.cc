#include "probe/site_statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/synthetic.h"

namespace quarot {
namespace {

// The numbers by their definitions, in two passes.
SiteStatistics by_definition(const Matrix& rows) {
  SiteStatistics s;
  double squares = 0;
  for (const float x : rows.elements()) squares += double{x} * x;
  const double mean_square = squares / static_cast<double>(rows.size());
  for (const float x : rows.elements()) {
    const double ratio = double{x} * x / mean_square;
    s.kurtosis += ratio * ratio / static_cast<double>(rows.size());
  }
  for (int64_t r = 0; r < rows.rows(); ++r) {
    double peak = 0;
    double row_squares = 0;
    for (const float x : rows.row(r)) {
      peak = std::max(peak, std::abs(double{x}));
      row_squares += double{x} * x;
    }
    s.peak_over_rms += peak / std::sqrt(row_squares / static_cast<double>(rows.cols())) /
                       static_cast<double>(rows.rows());
    s.loudest = std::max(s.loudest, peak);
  }
  s.norm = std::sqrt(squares);
  s.incoherence = s.loudest / std::sqrt(mean_square);
  return s;
}

TEST(SiteStatistics, FollowTheDefinitions) {
  Random random(1);
  Matrix rows = testing::random_matrix(random, 40, 24, 1);
  for (int64_t r = 0; r < 40; ++r) rows(r, 5) *= 30;
  const SiteStatistics found = site_statistics(rows);
  const SiteStatistics expected = by_definition(rows);
  EXPECT_NEAR(found.peak_over_rms, expected.peak_over_rms, 1e-9);
  EXPECT_NEAR(found.kurtosis, expected.kurtosis, 1e-9 * expected.kurtosis);
  EXPECT_EQ(found.loudest, expected.loudest);
  EXPECT_NEAR(found.norm, expected.norm, 1e-9 * expected.norm);
  EXPECT_NEAR(found.incoherence, expected.incoherence, 1e-9 * expected.incoherence);
  EXPECT_NEAR(incoherence(rows), expected.incoherence, 1e-9 * expected.incoherence);
}

// By hand: [[3, −4], [0, 12]].
TEST(SiteStatistics, OfASmallMatrix) {
  Matrix rows(2, 2, 0.0F);
  rows(0, 0) = 3;
  rows(0, 1) = -4;
  rows(1, 1) = 12;
  const SiteStatistics s = site_statistics(rows);
  EXPECT_EQ(s.norm, 13);
  EXPECT_EQ(s.loudest, 12);
  EXPECT_EQ(s.loud_channels, 1);
  EXPECT_EQ(s.channel_peak, (std::vector<double>{3, 12}));
  EXPECT_NEAR(s.channel_rms[0], std::sqrt(4.5), 1e-12);
  EXPECT_NEAR(s.channel_rms[1], std::sqrt(80), 1e-12);
  EXPECT_NEAR(s.incoherence, 24.0 / 13, 1e-12);
  EXPECT_NEAR(s.peak_over_rms, (4 / std::sqrt(12.5) + std::sqrt(2)) / 2, 1e-12);

  const SiteStatistics zeros = site_statistics(Matrix(2, 3, 0.0F));
  EXPECT_EQ(zeros.kurtosis, 0);
  EXPECT_EQ(zeros.incoherence, 0);
}

TEST(SiteStatistics, MeanOverLayers) {
  SiteStatistics a, b;
  a.kurtosis = 3;
  b.kurtosis = 5;
  a.loudest = 9;
  const SiteStatistics mean = mean_statistics({&a, &b});
  EXPECT_EQ(mean.kurtosis, 4);
  EXPECT_EQ(mean.loudest, 9);
}

TEST(RelativeDistance, IsThat) {
  Matrix a(1, 2, 0.0F);
  Matrix b(1, 2, 0.0F);
  b(0, 0) = 3;
  b(0, 1) = 4;
  a(0, 0) = 3;
  EXPECT_EQ(relative_distance(a, b), 0.8);
  EXPECT_EQ(relative_distance(b, b), 0);
  EXPECT_EQ(relative_distance(b, Matrix(1, 2, 0.0F)), 0);
}

TEST(LoudestOfRows, FindsWhereAndHowMuch) {
  Matrix rows(2, 5, 1.0F);
  rows(1, 3) = -2000;
  const std::vector<LoudElement> found = loudest_of_rows(rows);
  EXPECT_FALSE(found[0].massive());
  EXPECT_TRUE(found[1].massive());
  EXPECT_EQ(found[1].channel, 3);
  EXPECT_EQ(found[1].value, -2000);
  EXPECT_EQ(found[1].over_median, 2000);
}

}  // namespace
}  // namespace quarot
