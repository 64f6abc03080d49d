#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace quarot {
namespace {

// 1, 2, 6: mean 3, Σ(x − 3)² = 4 + 1 + 9 = 14, deviation √7, error √(7/3).
TEST(Statistics, OfThreeNumbers) {
  const std::vector<double> values = {1, 2, 6};
  EXPECT_DOUBLE_EQ(standard_deviation(values), std::sqrt(7.0));
  EXPECT_DOUBLE_EQ(estimate(values).mean, 3);
  EXPECT_DOUBLE_EQ(estimate(values).standard_error, std::sqrt(7.0 / 3));
}

TEST(Statistics, OfFewerThanTwo) {
  EXPECT_EQ(estimate({}).mean, 0);
  const std::vector<double> one = {4};
  EXPECT_EQ(estimate(one).mean, 4);
  EXPECT_TRUE(std::isnan(estimate(one).standard_error));
  EXPECT_TRUE(std::isnan(estimate({}).standard_error));
  EXPECT_TRUE(std::isnan(standard_deviation(one)));
}

// Differences 1, 2, 3, 2: mean 2, Σ(x − 2)² = 2, error √(2/3/4). Apart, the errors are 12.9.
TEST(Statistics, PairsCancelWhatTheyShare) {
  const std::vector<double> a = {11, 32, 63, 42};
  const std::vector<double> b = {10, 30, 60, 40};
  const Estimate difference = paired_difference(a, b);
  EXPECT_DOUBLE_EQ(difference.mean, 2);
  EXPECT_DOUBLE_EQ(difference.standard_error, std::sqrt(2.0 / 3 / 4));
  EXPECT_DOUBLE_EQ(paired_difference(b, a).mean, -2);
  EXPECT_EQ(paired_difference(a, a).standard_error, 0);
}

}  // namespace
}  // namespace quarot
