#include "quant/gptq.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <Eigen/LU>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/parallel.h"
#include "base/random.h"
#include "quant/cholesky.h"

namespace quarot {
namespace {

Matrix normal(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix m(rows, cols);
  for (float& x : m.elements()) x = static_cast<float>(random.normal());
  return m;
}

// Inputs whose channels are mixed with one another and differ in size.
Matrix correlated(int64_t tokens, int64_t width, uint64_t seed) {
  const Matrix z = normal(tokens, width, seed);
  const Matrix mix = normal(width, width, seed + 1);
  Matrix x(tokens, width);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < width; ++c) {
      double sum = 2.0 * z(t, c);
      for (int64_t k = 0; k < width / 4; ++k) sum += double{mix(c, k)} * z(t, k);
      x(t, c) = static_cast<float>(sum * (1 + static_cast<double>(c % 5)));
    }
  }
  return x;
}

Hessian hessian_of(const Matrix& inputs) {
  Hessian h(inputs.cols());
  h.add(inputs);
  return h;
}

// H = I up to a factor: each unit vector once.
Hessian identity(int64_t width) {
  Matrix x(width, width, 0.0F);
  for (int64_t i = 0; i < width; ++i) x(i, i) = 1;
  return hessian_of(x);
}

Eigen::MatrixXd exact(const Matrix& m) {
  Eigen::MatrixXd result(m.rows(), m.cols());
  for (int64_t r = 0; r < m.rows(); ++r) {
    for (int64_t c = 0; c < m.cols(); ++c) result(r, c) = m(r, c);
  }
  return result;
}

// tr((W−Ŵ) H (W−Ŵ)ᵀ) / tr(W H Wᵀ)
double relative_error(const Matrix& weight, const QuantizedWeight& rounded, const Matrix& h) {
  const Eigen::MatrixXd w = exact(weight);
  const Eigen::MatrixXd d = w - exact(rounded.dequantize());
  return (d * exact(h) * d.transpose()).trace() / (w * exact(h) * w.transpose()).trace();
}

// Optimal brain quantisation with the columns in a fixed order, as GPTQ's paper introduces it: in
// double, a dense inverse of what remains for every column.
BasicMatrix<int8_t> textbook(const WeightQuant& q, double damp, bool act_order,
                             const Matrix& weight, const Matrix& hessian) {
  const int64_t n = weight.cols();
  const int64_t group = group_size(q, n);
  Eigen::MatrixXd h = exact(hessian);
  const double ridge = damp * h.trace() / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) h(i, i) += ridge;
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  if (act_order) {
    std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return h(a, a) > h(b, b); });
  }
  const bool fixed = act_order || group == n;
  Eigen::MatrixXd w = exact(weight);
  std::vector<Grid> grids(weight.rows() * (n / group));
  const auto find_grids = [&](int64_t g) {
    for (int64_t r = 0; r < weight.rows(); ++r) {
      std::vector<float> x(group);
      for (int64_t c = 0; c < group; ++c) x[c] = static_cast<float>(w(r, g * group + c));
      grids[r * (n / group) + g] = weight_grid(q, x);
    }
  };
  if (fixed) {
    for (int64_t g = 0; g < n / group; ++g) find_grids(g);
  }
  BasicMatrix<int8_t> values(weight.rows(), n);
  for (int64_t j = 0; j < n; ++j) {
    const int64_t column = order[j];
    if (!fixed && column % group == 0) find_grids(column / group);
    const std::vector<int64_t> rest(order.begin() + j, order.end());
    const Eigen::MatrixXd inverse = Eigen::MatrixXd(h(rest, rest)).inverse();
    for (int64_t r = 0; r < weight.rows(); ++r) {
      const Grid& grid = grids[r * (n / group) + column / group];
      const int32_t level = grid.quantize(static_cast<float>(w(r, column)));
      values(r, column) = static_cast<int8_t>(level);
      const double error = (w(r, column) - grid.dequantize(level)) / inverse(0, 0);
      for (size_t k = 0; k < rest.size(); ++k) w(r, rest[k]) -= error * inverse(0, k);
    }
  }
  return values;
}

int64_t differences(const BasicMatrix<int8_t>& a, const BasicMatrix<int8_t>& b) {
  int64_t count = 0;
  for (int64_t i = 0; i < a.size(); ++i) count += a.data()[i] != b.data()[i] ? 1 : 0;
  return count;
}

TEST(Hessian, IsTheMeanOfOuterProductsTwice) {
  const Matrix x = correlated(70, 300, 1);
  Hessian h(300);
  h.add(x.view().rows(0, 1));
  h.add(x.view().rows(1, 40));
  h.add(x.view().rows(41, 0));
  h.add(x.view().rows(41, 29));
  EXPECT_EQ(h.tokens(), 70);
  const Eigen::MatrixXd expected = exact(x).transpose() * exact(x) * (2.0 / 70);
  const Eigen::MatrixXd found = exact(h.matrix());
  EXPECT_LT((found - expected).norm(), 1e-6 * expected.norm());
  EXPECT_EQ((found - found.transpose()).norm(), 0);
}

TEST(Hessian, ManyTokensKeepTheMean) {
  const Matrix x = correlated(8, 16, 2);
  Hessian h(16);
  for (int i = 0; i < 20000; ++i) h.add(x);
  const Eigen::MatrixXd once = exact(hessian_of(x).matrix());
  EXPECT_EQ(h.tokens(), 160000);
  EXPECT_LT((exact(h.matrix()) - once).norm(), 1e-4 * once.norm());
}

template <typename T>
void expect_factor(int64_t n, double tolerance) {
  const Eigen::MatrixXd x = exact(normal(n + 20, n, 3));
  const Eigen::MatrixXd a = x.transpose() * x;
  BasicMatrix<T> l(n, n);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c < n; ++c) l(r, c) = c <= r ? static_cast<T>(a(r, c)) : T{-77};
  }
  const BasicMatrix<T> original = l;
  ASSERT_TRUE(cholesky(l.view()));
  Eigen::MatrixXd factor(n, n);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c < n; ++c) factor(r, c) = l(r, c);
    for (int64_t c = r + 1; c < n; ++c) ASSERT_EQ(l(r, c), 0);
  }
  EXPECT_LT((factor * factor.transpose() - a).norm(), tolerance * a.norm());
  // Wherever the matrix stops being positive definite, or a number, it is noticed.
  for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
    for (const T bad : {T{-1}, std::numeric_limits<T>::quiet_NaN()}) {
      BasicMatrix<T> broken = original;
      broken(at, at) = bad;
      EXPECT_FALSE(cholesky(broken.view()));
    }
  }
}

TEST(Cholesky, FactorsSmallAndTiled) {
  for (const int64_t n : {1, 5, 128, 300}) {
    expect_factor<float>(n, 1e-5);
    expect_factor<double>(n, 1e-13);
  }
}

TEST(Gptq, IdentityIsRoundToNearest) {
  const Matrix w = normal(70, 96, 4);
  for (const int64_t group : {0, 32}) {
    for (const bool act_order : {false, true}) {
      for (const bool symmetric : {true, false}) {
        const WeightQuant q{.bits = 4, .group = group, .symmetric = symmetric};
        const QuantizedWeight expected = round_to_nearest(q, w);
        const auto found = gptq(q, {.block = 40, .act_order = act_order}, w, identity(96));
        ASSERT_TRUE(found.ok());
        EXPECT_EQ(differences(found->values, expected.values), 0);
        EXPECT_TRUE(std::ranges::equal(found->scales.elements(), expected.scales.elements()));
        EXPECT_TRUE(std::ranges::equal(found->zeros.elements(), expected.zeros.elements()));
      }
    }
  }
}

TEST(Gptq, EqualsTheTextbook) {
  const Matrix w = normal(24, 48, 5);
  const Hessian h = hessian_of(correlated(200, 48, 6));
  for (const int64_t group : {0, 8, 24}) {
    for (const bool act_order : {false, true}) {
      for (const bool symmetric : {true, false}) {
        SCOPED_TRACE(testing::Message() << group << act_order << symmetric);
        const WeightQuant q{.bits = 3, .group = group, .symmetric = symmetric};
        const auto expected = textbook(q, 0.01, act_order, w, h.matrix());
        for (const int64_t block : {1, 16, 128}) {
          const auto found = gptq(q, {.block = block, .act_order = act_order}, w, h);
          ASSERT_TRUE(found.ok());
          EXPECT_LE(differences(found->values, expected), 6);  // of 1152
        }
      }
    }
  }
}

RC_GTEST_PROP(Gptq, ErrorIsNeverAboveRoundToNearest, (uint16_t seed, bool symmetric)) {
  const WeightQuant q{.bits = *rc::gen::inRange(2, 6), .symmetric = symmetric};
  const Matrix w = normal(32, 40, seed);
  const Hessian h = hessian_of(correlated(120, 40, seed + 1000));
  const GptqOptions options{.act_order = *rc::gen::arbitrary<bool>()};
  const auto found = gptq(q, options, w, h);
  RC_ASSERT(found.ok());
  RC_ASSERT(relative_error(w, *found, h.matrix()) <=
            relative_error(w, round_to_nearest(q, w), h.matrix()));
}

TEST(Gptq, ReportsTheErrorUnderTheUndampedHessian) {
  const Matrix w = normal(130, 64, 7);
  const Hessian h = hessian_of(correlated(300, 64, 8));
  for (const float damp : {0.01F, 1.0F}) {
    GptqReport report;
    const auto found = gptq({.bits = 4}, {.block = 24, .damp = damp}, w, h, &report);
    ASSERT_TRUE(found.ok());
    const double expected = relative_error(w, *found, h.matrix());
    EXPECT_NEAR(report.error, expected, 1e-3 * expected);
    EXPECT_EQ(report.damp_used, damp);
    EXPECT_EQ(report.dead_columns, 0);
    EXPECT_FALSE(report.used_double);
  }
}

TEST(Gptq, DeadColumnsBecomeZero) {
  Matrix x = correlated(200, 32, 9);
  for (int64_t t = 0; t < x.rows(); ++t) x(t, 3) = x(t, 31) = 0;
  Matrix w = normal(16, 32, 10);
  for (int64_t r = 0; r < 16; ++r) w(r, 3) = 100;  // must not stretch the grid either
  Matrix without = w;
  for (int64_t r = 0; r < 16; ++r) without(r, 3) = without(r, 31) = 0;
  for (const WeightQuant& q : {WeightQuant{.bits = 4}, WeightQuant{.bits = 4, .symmetric = false},
                               WeightQuant{.bits = 4, .group = 8}}) {
    GptqReport report;
    const auto found = gptq(q, {}, w, hessian_of(x), &report);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(report.dead_columns, 2);
    const Matrix back = found->dequantize();
    for (int64_t r = 0; r < 16; ++r) {
      EXPECT_EQ(back(r, 3), 0);
      EXPECT_EQ(back(r, 31), 0);
    }
    const auto expected = gptq(q, {}, without, hessian_of(x));
    EXPECT_EQ(differences(found->values, expected->values), 0);
    EXPECT_NEAR(report.error, relative_error(without, *found, hessian_of(x).matrix()),
                1e-3 * report.error);
  }
}

// Neither the damping nor the factor sees them: what is live is rounded as if it were alone.
TEST(Gptq, DeadColumnsChangeNothingElse) {
  const Matrix live = correlated(200, 30, 9);
  const Matrix w = normal(16, 30, 10);
  const auto with_dead = [](const Matrix& m) {  // three beside each live one
    Matrix wide(m.rows(), 120, 0.0F);
    for (int64_t r = 0; r < m.rows(); ++r) {
      for (int64_t c = 0; c < 30; ++c) wide(r, 4 * c) = m(r, c);
    }
    return wide;
  };
  for (const float damp : {0.0F, 0.01F, 1.0F}) {
    const WeightQuant q{.bits = 4, .search_clip = false};
    GptqReport report;
    GptqReport alone_report;
    const auto found = gptq(q, {.damp = damp}, with_dead(w), hessian_of(with_dead(live)), &report);
    const auto alone = gptq(q, {.damp = damp}, w, hessian_of(live), &alone_report);
    ASSERT_TRUE(found.ok() && alone.ok());
    EXPECT_EQ(report.damp_used, damp);
    EXPECT_NEAR(report.error, alone_report.error, 1e-2 * alone_report.error);
    int64_t different = 0;
    for (int64_t r = 0; r < 16; ++r) {
      for (int64_t c = 0; c < 30; ++c)
        different += found->values(r, 4 * c) != alone->values(r, c) ? 1 : 0;
    }
    EXPECT_LE(different, 4);  // of 480: ties
  }
}

TEST(Gptq, NothingButZerosIsAllDead) {
  GptqReport report;
  const auto found =
      gptq({.bits = 4}, {}, normal(3, 8, 11), hessian_of(Matrix(5, 8, 0.0F)), &report);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(report.dead_columns, 8);
  EXPECT_EQ(report.error, 0);
  for (const int8_t v : found->values.elements()) EXPECT_EQ(v, 0);
}

TEST(Gptq, DampsASingularHessianUntilItFactors) {
  const Hessian ones = hessian_of(Matrix(4, 6, 1.0F));  // H = 2, everywhere
  const Matrix w = normal(5, 6, 12);
  struct Case {
    float damp, used;
    bool in_double;
  };
  // Added to 2, 2e-9 is lost in float32 but not in float64, and 2e-20 in both.
  for (const Case& c : {Case{0, 1e-4F, false}, Case{0.01F, 0.01F, false}, Case{1e-9F, 1e-9F, true},
                        Case{1e-20F, 1e-15F, true}}) {
    GptqReport report;
    const auto found = gptq({.bits = 4}, {.damp = c.damp}, w, ones, &report);
    ASSERT_TRUE(found.ok());
    EXPECT_LE(report.damp_used, c.used * 1.5F);
    EXPECT_GE(report.damp_used, c.used * 0.05F);
    EXPECT_EQ(report.used_double, c.in_double) << c.damp;
  }
}

TEST(Gptq, ThreadsChangeNothing) {
  const int threads = thread_count();
  for (const auto& [rows, width] : {std::pair{20, 700}, {150, 160}}) {
    const Matrix w = normal(rows, width, 13);
    const Matrix x = normal(900, width, 14);
    const WeightQuant q{.bits = 4, .group = 20};
    set_thread_count(1);
    const Hessian h1 = hessian_of(x);
    const auto one = gptq(q, {}, w, h1);
    set_thread_count(4);
    const Hessian h4 = hessian_of(x);
    const auto four = gptq(q, {}, w, h4);
    set_thread_count(threads);
    EXPECT_TRUE(std::ranges::equal(h1.matrix().elements(), h4.matrix().elements()));
    EXPECT_EQ(differences(one->values, four->values), 0);
    EXPECT_TRUE(std::ranges::equal(one->scales.elements(), four->scales.elements()));
  }
}

TEST(Gptq, RefusesWhatMakesNoSense) {
  const Matrix w = normal(3, 8, 15);
  const Hessian h = identity(8);
  const auto refused = [](const Result<QuantizedWeight>& result) {
    return !result.ok() && result.error().code() == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(gptq({.bits = 4}, {}, w, h).ok());
  EXPECT_TRUE(refused(gptq({}, {}, w, h)));
  EXPECT_TRUE(refused(gptq({.bits = 1}, {}, w, h)));
  EXPECT_TRUE(refused(gptq({.bits = 4, .group = 3}, {}, w, h)));
  EXPECT_TRUE(refused(gptq({.bits = 4}, {.block = 0}, w, h)));
  EXPECT_TRUE(refused(gptq({.bits = 4}, {.damp = -1}, w, h)));
  EXPECT_TRUE(refused(gptq({.bits = 4}, {.damp = std::nanf("")}, w, h)));
  EXPECT_TRUE(refused(gptq({.bits = 4}, {}, w, identity(9))));
  EXPECT_TRUE(refused(gptq({.bits = 4}, {}, w, Hessian(8))));
  Matrix bad = w;
  bad(1, 2) = std::nanf("");
  EXPECT_TRUE(refused(gptq({.bits = 4}, {}, bad, h)));
  EXPECT_TRUE(refused(gptq({.bits = 4}, {}, w, hessian_of(Matrix(1, 8, 1e30F)))));
  EXPECT_TRUE(gptq({.bits = 4}, {.block = INT64_MAX}, w, h).ok());
}

}  // namespace
}  // namespace quarot
