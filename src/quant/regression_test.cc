#include "quant/regression.h"

#include <gtest/gtest.h>

#include <Eigen/LU>

#include "base/random.h"

namespace quarot {
namespace {

Matrix normal(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix m(rows, cols);
  for (float& x : m.elements()) x = static_cast<float>(random.normal());
  return m;
}

Eigen::MatrixXd exact(const Matrix& m) {
  Eigen::MatrixXd result(m.rows(), m.cols());
  for (int64_t r = 0; r < m.rows(); ++r) {
    for (int64_t c = 0; c < m.cols(); ++c) result(r, c) = double{m(r, c)};
  }
  return result;
}

struct Moments {
  Moments(const Matrix& y, const Matrix& x, int64_t batch)
      : cross(y.cols(), x.cols()), hessian(x.cols()) {
    for (int64_t first = 0; first < x.rows(); first += batch) {
      const int64_t count = std::min(batch, x.rows() - first);
      cross.add(y.view().rows(first, count), x.view().rows(first, count));
      hessian.add(x.view().rows(first, count));
    }
  }
  CrossMoment cross;
  Hessian hessian;
};

TEST(Regression, ByHand) {
  // x = (1, 0), (0, 2): 2·E[x xᵀ] = diag(1, 4). y = (3), (2): 2·E[y xᵀ] = (3, 4).
  Matrix x(2, 2, 0.0F);
  x(0, 0) = 1;
  x(1, 1) = 2;
  Matrix y(2, 1);
  y(0, 0) = 3;
  y(1, 0) = 2;
  const Moments m(y, x, 2);
  EXPECT_FLOAT_EQ(m.cross.matrix()(0, 0), 3);
  EXPECT_FLOAT_EQ(m.cross.matrix()(0, 1), 4);
  // A ridge of 0.4 adds 0.4 · 2.5 = 1 to the diagonal.
  const Result<Matrix> d = regress(m.cross, m.hessian, 0.4);
  ASSERT_TRUE(d.ok());
  EXPECT_FLOAT_EQ((*d)(0, 0), 1.5F);
  EXPECT_FLOAT_EQ((*d)(0, 1), 0.8F);
}

TEST(Regression, IsTheDenseSolutionWhateverTheBatches) {
  const Matrix x = normal(5000, 70, 1);  // more than two blocks of 2048
  const Matrix y = normal(5000, 130, 2);
  const Eigen::MatrixXd ex = exact(x);
  Eigen::MatrixXd h = ex.transpose() * ex / 5000;
  h += 0.05 * h.trace() / 70 * Eigen::MatrixXd::Identity(70, 70);
  const Eigen::MatrixXd expected = exact(y).transpose() * ex / 5000 * h.inverse();
  for (const int64_t batch : {5000, 333}) {
    const Moments m(y, x, batch);
    const Result<Matrix> d = regress(m.cross, m.hessian, 0.05);
    ASSERT_TRUE(d.ok());
    EXPECT_LT((exact(*d) - expected).norm() / expected.norm(), 1e-5) << batch;
  }
}

TEST(Regression, FindsALinearMap) {
  const Matrix x = normal(400, 30, 3);
  const Matrix map = normal(9, 30, 4);
  Matrix y(400, 9, 0.0F);
  for (int64_t t = 0; t < 400; ++t) {
    for (int64_t r = 0; r < 9; ++r) {
      for (int64_t c = 0; c < 30; ++c) y(t, r) += map(r, c) * x(t, c);
    }
  }
  const Moments m(y, x, 400);
  const Result<Matrix> d = regress(m.cross, m.hessian, 1e-7);
  ASSERT_TRUE(d.ok());
  EXPECT_LT((exact(*d) - exact(map)).norm() / exact(map).norm(), 1e-5);
}

TEST(Regression, InputsThatSayNothingChangeNothing) {
  const Moments m(normal(8, 3, 5), Matrix(8, 4, 0.0F), 8);
  const Result<Matrix> d = regress(m.cross, m.hessian, 0.01);
  ASSERT_TRUE(d.ok());
  for (const float value : d->elements()) EXPECT_EQ(value, 0.0F);
}

TEST(Regression, RefusesWhatDoesNotBelongTogether) {
  const Moments m(normal(8, 3, 6), normal(8, 4, 7), 8);
  Hessian other(4);
  other.add(normal(7, 4, 8));
  EXPECT_EQ(regress(m.cross, other, 0.01).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(regress(m.cross, Hessian(5), 0.01).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(regress(m.cross, m.hessian, 0).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quarot
