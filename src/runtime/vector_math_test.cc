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

TEST(ExpShifted, IsSoftmaxBeforeDividing) {
  for (int64_t n = 0; n < kSizes; ++n) {
    for (const double spread : {0.01, 1.0, 30.0}) {
      const std::vector<float> x = random_row(n, spread);
      std::vector<float> y = x;
      const double sum = exp_shifted(y);
      EXPECT_NEAR(sum, exact_sum(x), 1e-6 * (1 + exact_sum(x))) << n;
      for (size_t i = 0; i < x.size(); ++i) {
        // The argument is rounded to float32 before exp: that costs |argument| half-ulps.
        const double argument = double{x[i]} - largest(x);
        const double exact = std::exp(argument);
        EXPECT_NEAR(y[i], exact, exact * (3e-7 + 1.2e-7 * std::abs(argument)) + 2e-38) << argument;
      }
    }
  }
}

// Over the whole range: e^x itself, through a second element that fixes the maximum at 0.
TEST(ExpShifted, KeepsItsAccuracyDownToTheSmallestFloat) {
  for (double x = 0; x > -87; x -= 0.0137) {
    std::vector<float> pair = {static_cast<float>(x), 0};
    exp_shifted(pair);
    const double exact = std::exp(double{static_cast<float>(x)});
    EXPECT_NEAR(pair[0], exact, 3e-7 * exact) << x;
  }
}

TEST(ExpShifted, OfWhatIsFarBelowTheLargestIsNothing) {
  for (const float low : {-1e4F, -3e38F, -kInfinity}) {
    std::vector<float> x = {5, low, 5};
    EXPECT_EQ(exp_shifted(x), 2) << low;
    EXPECT_EQ(x[0], 1);
    EXPECT_LT(x[1], 2e-38F);
  }
  std::vector<float> huge = {3e38F, -3e38F};
  EXPECT_EQ(exp_shifted(huge), 1);
}

// No probability can be told of an infinite score: the result says so instead of looking like one.
TEST(ExpShifted, OfInfinityIsNotANumber) {
  std::vector<float> up = {0, kInfinity};
  EXPECT_FALSE(std::isfinite(exp_shifted(up)));
  std::vector<float> down = {-kInfinity, -kInfinity};
  EXPECT_FALSE(std::isfinite(exp_shifted(down)));
  std::vector<float> nan = {0, std::nanf("")};
  EXPECT_TRUE(std::isnan(exp_shifted(nan)));
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

TEST(RmsNorm, EqualsDoublePrecision) {
  for (int64_t n = 0; n < kSizes; ++n) {
    for (const double spread : {1e-12, 1.0, 1e15}) {
      const std::vector<float> x = random_row(n, spread);
      const std::vector<float> gain = random_row(n, 2);
      double squares = 0;
      for (const float v : x) squares += double{v} * v;
      const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5F);
      std::vector<float> y(x.size());
      rms_norm(x, gain, 1e-5F, y);
      std::vector<float> in_place = x;
      rms_norm(in_place, gain, 1e-5F, in_place);
      EXPECT_EQ(in_place, y);
      for (size_t i = 0; i < x.size(); ++i) {
        const double exact = x[i] * factor * gain[i];
        EXPECT_NEAR(y[i], exact, 1e-6 * std::abs(exact)) << n;
      }
    }
  }
}

TEST(Swiglu, EqualsDoublePrecision) {
  for (int64_t n = 0; n < kSizes; ++n) {
    const std::vector<float> gate = random_row(n, 8);
    const std::vector<float> up = random_row(n, 3);
    std::vector<float> y = gate;
    swiglu(y, up, y);
    for (size_t i = 0; i < y.size(); ++i) {
      const double exact = double{gate[i]} / (1 + std::exp(-double{gate[i]})) * up[i];
      EXPECT_NEAR(y[i], exact, 1e-6 * std::abs(exact) + 1e-37) << gate[i];
    }
  }
}

TEST(Swiglu, SaturatesAtBothEnds) {
  const std::vector<float> gate = {200, -200, 3e38F, -1e30F, 0};
  const std::vector<float> up(gate.size(), 1.0F);
  std::vector<float> y(gate.size());
  swiglu(gate, up, y);
  EXPECT_EQ(y[0], 200);
  EXPECT_NEAR(y[1], 0, 1e-30);
  EXPECT_EQ(y[2], 3e38F);
  EXPECT_NEAR(y[3] / gate[3], 0, 1e-30);
  EXPECT_EQ(y[4], 0);
}

TEST(Elementwise, AddScaleAndSumOfSquares) {
  for (int64_t n = 0; n < kSizes; ++n) {
    const std::vector<float> x = random_row(n, 1);
    std::vector<float> y = x;
    add(x, y);
    double squares = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(y[i], 2 * x[i]);
      squares += double{x[i]} * x[i];
    }
    scale(y, 0.5F);
    EXPECT_EQ(y, x);
    EXPECT_NEAR(sum_of_squares(x), squares, 1e-6 * squares);
  }
}

}  // namespace
}  // namespace quarot
