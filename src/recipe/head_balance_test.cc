#include "recipe/head_balance.h"

#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <algorithm>

#include "model/basis.h"
#include "support/quantized.h"
#include "support/synthetic.h"
#include "tensor/gemm.h"

namespace quarot {
namespace {

using testing::value_of;

ModelConfig two_heads(int64_t head_dim) {
  ModelConfig config;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = head_dim;
  return config;
}

// Two query heads of one KV head, channels uncorrelated: M is balance's diagonal.
TEST(HeadBalance, OfUncorrelatedChannelsIsTheDiagonal) {
  Matrix weight(2, 4, 0.0F);
  Matrix inputs(4, 4, 0.0F);
  Hessian hessian(4);
  weight(0, 0) = 4;  // G = diag(16, 81)
  weight(1, 3) = 9;
  inputs(0, 0) = 2;  // 2·E x xᵀ = diag(2, ½), summed over the heads
  inputs(1, 3) = 1;
  hessian.add(inputs);
  const HeadBalance balance = value_of(balance_heads(two_heads(2), 0.5, weight, hessian));
  const std::vector<double>& scale = balance.scale;
  ASSERT_EQ(scale.size(), 2U);
  EXPECT_NEAR(scale[0], std::pow(16 / 2.0, 0.25), 1e-3);
  EXPECT_NEAR(scale[1], std::pow(81 / 0.5, 0.25), 1e-3);
  const BasicMatrix<double> basis = balance.bases.at(0).matrix();
  EXPECT_NEAR(std::abs(basis(0, 0)), 1, 1e-12);
  EXPECT_NEAR(std::abs(basis(1, 1)), 1, 1e-12);
}

TEST(HeadBalance, IsTheGeometricMean) {
  constexpr int64_t n = 6;
  Random random(3);
  const Matrix weight = testing::random_matrix(random, 40, 2 * n, 1);
  const Matrix mix = testing::random_matrix(random, 2 * n, 2 * n, 1);
  Matrix inputs(500, 2 * n);
  matmul_transposed(testing::random_matrix(random, 500, 2 * n, 1), mix, inputs);
  Hessian hessian(2 * n);
  hessian.add(inputs);
  const HeadBalance balance = value_of(balance_heads(two_heads(n), 0.5, weight, hessian));
  Eigen::MatrixXd t(n, n);  // T = diag(scale)·basis
  const BasicMatrix<double> basis = balance.bases.at(0).matrix();
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c < n; ++c) t(r, c) = balance.scale[static_cast<size_t>(r)] * basis(r, c);
  }
  const Eigen::MatrixXd m = t.transpose() * t;
  Eigen::MatrixXd g = Eigen::MatrixXd::Zero(n, n);
  Eigen::MatrixXd s = Eigen::MatrixXd::Zero(n, n);
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        s(r, c) += double{hessian.matrix()(head * n + r, head * n + c)};
        for (int64_t o = 0; o < weight.rows(); ++o)
          g(r, c) += double{weight(o, head * n + r)} * weight(o, head * n + c);
      }
    }
  }
  EXPECT_LT((m * s * m - g).norm() / g.norm(), 1e-3);  // the ridge's share
  const auto cost = [&](const Eigen::MatrixXd& x) {
    return (g * x.inverse()).trace() * (s * x).trace();
  };
  Eigen::VectorXd diagonal = (g.diagonal().array() / s.diagonal().array()).sqrt();
  EXPECT_LT(cost(m), cost(diagonal.asDiagonal()));
  EXPECT_LT(cost(m), cost(Eigen::MatrixXd::Identity(n, n)));
}

TEST(HeadBalance, KeepsTheFunction) {
  const Model model = testing::random_model(testing::config_json({{"model_type", "qwen2"}}), 4);
  const std::vector<Token> tokens = testing::random_tokens(64, 96, 5);
  Recipe recipe = value_of(recipe_by_name("balanced"));
  recipe.precision = {};
  recipe.weights.bits = kFloatBits;
  const Matrix diagonal =
      testing::quantized(recipe, model, {tokens}).layers[0][Role::kValue].weight;
  recipe.scaling.head_bases = true;
  const Model moved = testing::quantized(recipe, model, {tokens});
  EXPECT_GT(testing::relative_error(moved.layers[0][Role::kValue].weight, diagonal), 0.1);
  EXPECT_LT(
      testing::relative_error(testing::logits_of(moved, tokens), testing::logits_of(model, tokens)),
      1e-5);
}

}  // namespace
}  // namespace quarot
