// Every function against the same formula in double precision, at sizes around the vector lanes.
#include "runtime/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/synthetic.h"

namespace quarot {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kSizes = 41;  // 0 … 40: below, at and above 16 and 32 lanes

std::vector<float> random_row(int64_t size, double spread) {
  Random random(static_cast<uint64_t>(size) + 1);
  return testing::random_vector(random, size, 0, spread);
}

double largest(const std::vector<float>& x) {
  double result = -std::numeric_limits<double>::infinity();
  for (const float v : x) result = std::max(result, double{v});
  return result;
}

double exact_sum(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += std::exp(v - largest(x));
  return sum;
}

TEST(LogSumExp, EqualsDoublePrecision) {
  for (int64_t n = 1; n < kSizes; ++n) {
    for (const double spread : {0.01, 1.0, 1000.0}) {
      const std::vector<float> x = random_row(n, spread);
      const double exact = largest(x) + std::log(exact_sum(x));
      EXPECT_NEAR(log_sum_exp(x), exact, 2e-7 * std::abs(exact) + 5e-7) << n;
    }
  }
  EXPECT_EQ(log_sum_exp({}), -kInfinity);
  EXPECT_EQ(log_sum_exp(std::vector<float>{3e38F}), 3e38F);
  EXPECT_EQ(log_sum_exp(std::vector<float>{1, -kInfinity}), 1);
  EXPECT_FALSE(std::isfinite(log_sum_exp(std::vector<float>{1, kInfinity})));
  EXPECT_TRUE(std::isnan(log_sum_exp(std::vector<float>{1, std::nanf("")})));
}

TEST(Elementwise, Add) {
  for (int64_t n = 0; n < kSizes; ++n) {
    const std::vector<float> x = random_row(n, 1);
    std::vector<float> y = x;
    add(x, y);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], 2 * x[i]);
  }
}

TEST(Elementwise, ScaledSumsOfIntegers) {
  for (int64_t n = 0; n < kSizes; ++n) {
    std::vector<int8_t> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<int8_t>(i - 20));
    std::vector<float> sums(values.size());
    to_float(values, 3, sums.data());
    const std::vector<float> w = random_row(n, 1);
    std::vector<float> y(values.size(), std::nanf(""));
    scale_sums(sums, 0.3F, w, true, y);
    scale_sums(sums, 0.1F, w, false, y);
    for (size_t i = 0; i < y.size(); ++i) {
      const auto sum = static_cast<float>(values[i] - 3);
      EXPECT_EQ(y[i], sum * 0.3F * w[i] + sum * 0.1F * w[i]);
    }
  }
}

}  // namespace
}  // namespace quarot
