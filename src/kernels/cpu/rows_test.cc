#include "kernels/cpu/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/cpu/kernels_test.h"
#include "kernels/reference/rows.h"

namespace quarot::cpu {
namespace {

Matrix random_matrix(int64_t rows, int64_t cols, Random& random) {
  Matrix m(rows, cols);
  for (float& x : m.elements()) x = static_cast<float>(random.normal());
  return m;
}

int64_t padded(int64_t width) { return (width + 63) / 64 * 64; }

// Everything that an operation writes.
struct Output {
  explicit Output(const RowTask& t)
      : values(t.rows, padded(t.width), int8_t{99}),
        scales(t.rows, t.scale_groups),
        sums(t.rows, t.groups),
        y(t.rows, t.width, 0.0F) {}
  RowTask into(RowTask t, bool quantised) {
    t.values = quantised ? values.data() : nullptr;
    t.values_stride = values.cols();
    t.scales = scales.data();
    t.sums = sums.data();
    t.y = y.data();
    t.y_stride = y.cols();
    return t;
  }
  BasicMatrix<int8_t> values;
  Matrix scales;
  BasicMatrix<int32_t> sums;
  Matrix y;
};

using RowsTest = KernelsTest;

void expect_equal(const Kernels& kernels, const RowTask& task, const std::string& what) {
  Output expected(task);
  Output result(task);
  for (const bool quantised : {false, true}) {
    reference::rows(expected.into(task, quantised));
    rows(kernels, result.into(task, quantised));
  }
  EXPECT_TRUE(same_bits(expected.y, result.y)) << what;
  EXPECT_TRUE(same_bits(expected.values, result.values)) << what;
  EXPECT_TRUE(same_bits(expected.scales, result.scales)) << what;
  EXPECT_TRUE(same_bits(expected.sums, result.sums)) << what;
}

TEST_P(RowsTest, EqualTheReferenceForEverySource) {
  Random random(1);
  for (const int64_t width : {1, 7, 16, 33, 64, 576, 1000}) {
    const Matrix x = random_matrix(5, width, random);
    const Matrix up = random_matrix(5, width, random);
    const Matrix gain = random_matrix(1, width, random);
    RowTask t = {.rows = 5, .width = width, .x = x.data(), .x_stride = width};
    t.up = up.data();
    t.up_stride = width;
    t.eps = 1e-5F;
    for (const RowSource source : {RowSource::kCopy, RowSource::kRmsNorm, RowSource::kSwiGlu}) {
      for (const float* g : {static_cast<const float*>(nullptr), gain.data()}) {
        t.source = source;
        t.gain = g;
        t.bits = 2 + static_cast<int>(random.below(7));
        t.clip = 0.9F;
        expect_equal(kernels(), t, "width " + std::to_string(width));
      }
    }
  }
}

TEST_P(RowsTest, EqualTheReferenceForEveryHadamard) {
  Random random(2);
  struct Case {
    int64_t m;
    int log2;
    int64_t inner, blocks;
  };
  const Case cases[] = {{1, 0, 1, 7},  {1, 5, 1, 3}, {1, 9, 1, 1},   {3, 7, 1, 1},  {12, 7, 1, 1},
                        {12, 3, 1, 2}, {5, 1, 1, 3}, {9, 2, 16, 1},  {7, 2, 32, 1}, {9, 2, 4, 1},
                        {1, 3, 20, 1}, {3, 2, 5, 1}, {107, 2, 1, 1}, {1, 1, 8, 2},  {4, 6, 2, 1}};
  for (const Case& c : cases) {
    const Matrix factor = random_matrix(c.m, c.m, random);
    const HadamardTask h = {
        .m = c.m, .log2 = c.log2, .inner = c.inner, .factor = factor.data(), .scale = 0.3F};
    const int64_t width = h.length() * c.blocks;
    const Matrix x = random_matrix(3, width, random);
    RowTask t = {.rows = 3, .width = width, .x = x.data(), .x_stride = width};
    t.source = RowSource::kRmsNorm;
    t.eps = 1e-5F;
    t.hadamard = &h;
    t.bits = 4;
    expect_equal(kernels(), t, std::to_string(c.m) + " x 2^" + std::to_string(c.log2));
  }
}

TEST_P(RowsTest, EqualTheReferenceInGroups) {
  Random random(3);
  const Matrix x = random_matrix(4, 576, random);
  RowTask t = {.rows = 4, .width = 576, .x = x.data(), .x_stride = 576};
  t.groups = 9;
  for (const int64_t scale_groups : {1, 9}) {
    t.scale_groups = scale_groups;
    expect_equal(kernels(), t, std::to_string(scale_groups) + " scales");
  }
}

TEST_P(RowsTest, QuantiseWhatIsNoOrdinaryNumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float rows_of_x[][4] = {{0, 0, 0, 0},
                                {kNan, 1, -2, 0.5F},
                                {kInf, 1, -kInf, kNan},
                                {1e-45F, 0, 0, -0.F},
                                {3e38F, -3e38F, 1, 2}};
  RowTask t = {.rows = 5, .width = 4, .x = &rows_of_x[0][0], .x_stride = 4};
  t.bits = 4;
  expect_equal(kernels(), t, "special values");
}

INSTANTIATE_TEST_SUITE_P(Isa, RowsTest, every_isa(), isa_name);

// The reference itself, against what it claims.

TEST(RowsReference, ExpIsWithinTwoUnitsOfTheTrueValue) {
  for (float x = -87.0F; x < 87.0F; x += 0.0371F) {
    const double exact = std::exp(static_cast<double>(x));
    const auto rounded = static_cast<float>(exact);
    const double unit = static_cast<double>(std::nextafter(rounded, 1e38F)) - rounded;
    EXPECT_NEAR(reference::exp(x), exact, 2 * unit) << x;
  }
  EXPECT_EQ(reference::exp(0), 1.0F);
}

TEST(RowsReference, HadamardIsTheDenseMatrix) {
  Random random(4);
  const float factor[] = {0.6F, 0.8F, -0.8F, 0.6F};
  const HadamardTask h = {.m = 2, .log2 = 3, .inner = 3, .factor = factor, .scale = 0.35355339F};
  const int64_t n = h.length();
  const Matrix x = random_matrix(1, n, random);
  Matrix y = x;
  reference::hadamard(h, y.data(), n);
  for (int64_t i = 0; i < n; ++i) {
    double expected = 0;
    for (int64_t j = 0; j < n; ++j) {
      if (i % 3 != j % 3) continue;
      const auto walsh = static_cast<unsigned>(i / 3 % 8 & (j / 3 % 8));
      const double sign = __builtin_popcount(walsh) % 2 == 0 ? 1 : -1;
      expected += sign * factor[i / 24 * 2 + j / 24] * x(0, j) / std::sqrt(8.0);
    }
    EXPECT_NEAR(y(0, i), expected, 1e-5);
  }
}

// By hand: s = 0.9·max|x|/7, q = clip(rint(x/s), −8, 7).
TEST(RowsReference, QuantisesAsDesigned) {
  const float x[] = {0.1F, -2.0F, 0.9F, 1.9F, -0.45F, 0.0F};
  RowTask t = {.rows = 1, .width = 6, .x = x, .x_stride = 6};
  t.bits = 4;
  t.clip = 0.9F;
  Output out(t);
  reference::rows(out.into(t, true));
  const int expected[] = {0, -8, 4, 7, -2, 0};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(out.values(0, i), expected[i]);
  EXPECT_FLOAT_EQ(out.scales(0, 0), 0.9F * 2.0F / 7.0F);
  EXPECT_EQ(out.sums(0, 0), 1);
}

}  // namespace
}  // namespace quarot::cpu
