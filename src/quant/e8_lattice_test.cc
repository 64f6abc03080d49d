// The lattice code against its definition and exhaustive search; block LDLQ against GPTQ's promise.
#include "quant/e8_lattice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/random.h"

namespace quarot {
namespace {

double distance(const E8Vector& a, const E8Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return sum;
}

// All 65536 codewords are different points of E8 + ¼: x − ¼ is all integers or all half-integers,
// and its sum is even.
TEST(E8, CodewordsAreDistinctPointsOfTheLattice) {
  std::set<E8Vector> points;
  for (int code = 0; code < 65536; ++code) {
    const E8Vector point = e8_point(static_cast<uint16_t>(code));
    points.insert(point);
    double sum = 0;
    const double part = point[0] - 0.25 - std::floor(point[0] - 0.25);
    ASSERT_TRUE(part == 0 || part == 0.5) << code;
    for (const float x : point) {
      ASSERT_EQ(x - 0.25 - std::floor(x - 0.25), part) << code;
      sum += x - 0.25;
    }
    ASSERT_EQ(std::fmod(sum, 2), 0) << code;
  }
  EXPECT_EQ(points.size(), 65536U);
}

TEST(E8, EveryCodewordIsItsOwnNearest) {
  for (int code = 0; code < 65536; code += 7) {
    const E8Vector point = e8_point(static_cast<uint16_t>(code));
    EXPECT_EQ(nearest_e8(point), code);
  }
}

TEST(E8, NearestIsWhatExhaustiveSearchFinds) {
  std::vector<E8Vector> points;
  for (int code = 0; code < 65536; ++code) points.push_back(e8_point(static_cast<uint16_t>(code)));
  Random random(1);
  for (int trial = 0; trial < 60; ++trial) {
    E8Vector x;
    const double spread = trial % 3 == 0 ? 0.3 : trial % 3 == 1 ? 1 : 3;
    for (float& value : x) value = static_cast<float>(spread * random.normal());
    double least = INFINITY;
    for (const E8Vector& point : points) least = std::min(least, distance(x, point));
    EXPECT_NEAR(distance(x, e8_point(nearest_e8(x))), least, 1e-5 * (1 + least));
  }
}

Matrix gaussian(int64_t rows, int64_t cols, Random& random) {
  Matrix matrix(rows, cols);
  for (float& value : matrix.elements()) value = static_cast<float>(random.normal());
  return matrix;
}

double squared_error(const Matrix& a, const Matrix& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i)
    sum += (double{a.data()[i]} - b.data()[i]) * (double{a.data()[i]} - b.data()[i]);
  return sum;
}

// The best four levels of a scalar leave 0.1175 of a Gaussian's variance (Max 1960); the lattice,
// at the same two bits, must leave much less. The rate–distortion bound is 1/16.
TEST(E8, BeatsTheBestScalarQuantiserOfTwoBits) {
  Random random(2);
  const Matrix weight = gaussian(64, 256, random);
  const double error = squared_error(weight, round_to_e8(weight)) / (64 * 256);
  EXPECT_LT(error, 0.096);
  EXPECT_GT(error, 0.0625);
}

TEST(E8, RowsHaveScalesOfTheirOwn) {
  Random random(3);
  Matrix weight = gaussian(3, 64, random);
  std::ranges::fill(weight.row(1), 0.0F);
  Matrix doubled(weight.view());
  for (float& value : doubled.row(2)) value *= 2;
  const Matrix a = round_to_e8(weight);
  const Matrix b = round_to_e8(doubled);
  for (size_t c = 0; c < 64; ++c) {
    EXPECT_EQ(b.row(0)[c], a.row(0)[c]);
    EXPECT_EQ(a.row(1)[c], 0.0F);
    EXPECT_EQ(b.row(2)[c], 2 * a.row(2)[c]);
  }
}

TEST(LdlqToE8, UnderTheIdentityIsRounding) {
  Random random(4);
  const Matrix weight = gaussian(16, 64, random);
  Hessian hessian(64);
  Matrix inputs(64, 64, 0.0F);
  for (int64_t i = 0; i < 64; ++i) inputs(i, i) = 3;
  hessian.add(inputs);
  const auto rounded = ldlq_to_e8(weight, hessian, 0.01F);
  ASSERT_TRUE(rounded.ok());
  EXPECT_EQ(squared_error(*rounded, round_to_e8(weight)), 0);
}

// Sixty of the inputs are silent: no factor without damping.
TEST(LdlqToE8, DampsASingularHessianEvenFromZero) {
  Random random(6);
  Hessian hessian(64);
  Matrix inputs(8, 64, 0.0F);
  for (int64_t t = 0; t < 8; ++t) inputs(t, t % 4) = 1;
  hessian.add(inputs);
  EXPECT_TRUE(ldlq_to_e8(gaussian(4, 64, random), hessian, 0).ok());
}

// With inputs that correlate, the outputs' error falls well below rounding's.
TEST(LdlqToE8, LowersTheOutputError) {
  Random random(5);
  const int64_t width = 64;
  const Matrix weight = gaussian(32, width, random);
  Matrix inputs = gaussian(500, width, random);
  for (int64_t r = 0; r < inputs.rows(); ++r) {
    for (int64_t c = 1; c < width; ++c)
      inputs(r, c) = 0.9F * inputs(r, c - 1) + 0.4F * inputs(r, c);
  }
  Hessian hessian(width);
  hessian.add(inputs);
  const auto output_error = [&](const Matrix& rounded) {
    double sum = 0;
    for (int64_t o = 0; o < weight.rows(); ++o) {
      for (int64_t t = 0; t < inputs.rows(); ++t) {
        double y = 0;
        for (int64_t c = 0; c < width; ++c) y += (weight(o, c) - rounded(o, c)) * inputs(t, c);
        sum += y * y;
      }
    }
    return sum;
  };
  const auto compensated = ldlq_to_e8(weight, hessian, 0.01F);
  ASSERT_TRUE(compensated.ok());
  EXPECT_LT(output_error(*compensated), 0.6 * output_error(round_to_e8(weight)));
}

}  // namespace
}  // namespace quarot
