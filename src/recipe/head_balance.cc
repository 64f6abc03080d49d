#include "recipe/head_balance.h"

#include <Eigen/Eigenvalues>
#include <cmath>

#include "base/error.h"

namespace quarot {

namespace {

constexpr double kRidge = 1e-4;

using Square = Eigen::MatrixXd;

Square power(const Square& symmetric, double exponent) {
  const Eigen::SelfAdjointEigenSolver<Square> solver(symmetric);
  const Eigen::VectorXd values = solver.eigenvalues().array().max(0).pow(exponent);
  return solver.eigenvectors() * values.asDiagonal() * solver.eigenvectors().transpose();
}

// Zero stays the identity: a head that carries nothing, or is not read.
Square regular(const Square& m) {
  const auto n = static_cast<double>(m.rows());
  const double mean = m.trace() / n;
  return mean > 0 ? Square(m + kRidge * mean * Square::Identity(m.rows(), m.rows()))
                  : Square(Square::Identity(m.rows(), m.rows()));
}

// a⁻¹ # b: the positive definite M with M·a·M = b.
Square geometric_mean(const Square& a, const Square& b) {
  const Square root = power(a, 0.5);
  const Square inverse = power(a, -0.5);
  return inverse * power(root * b * root, 0.5) * inverse;
}

// Σ over the query heads of the KV head.
Square energy(const ModelConfig& config, int64_t kv_head, const Matrix& weight) {
  const int64_t n = config.head_dim;
  Square sum = Square::Zero(n, n);
  for (int64_t head = kv_head * config.group(); head < (kv_head + 1) * config.group(); ++head) {
    Square columns(weight.rows(), n);
    for (int64_t r = 0; r < weight.rows(); ++r) {
      for (int64_t c = 0; c < n; ++c) columns(r, c) = weight(r, head * n + c);
    }
    sum += columns.transpose() * columns;
  }
  return sum;
}

Square moments(const ModelConfig& config, int64_t kv_head, const Matrix& inputs) {
  const int64_t n = config.head_dim;
  Square sum = Square::Zero(n, n);
  for (int64_t head = kv_head * config.group(); head < (kv_head + 1) * config.group(); ++head) {
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < n; ++c) sum(r, c) += inputs(head * n + r, head * n + c);
    }
  }
  return sum;
}

}  // namespace

Result<HeadBalance> balance_heads(const ModelConfig& config, double alpha, const Matrix& weight,
                                  const Hessian& inputs) {
  HeadBalance balance;
  const int64_t n = config.head_dim;
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    const Square mean = geometric_mean(regular(moments(config, head, inputs.matrix())),
                                       regular(energy(config, head, weight)));
    if (!mean.allFinite()) {
      return error(
          ErrorCode::kInvalidArgument,
          "o_proj: the weights or inputs of KV head {} are not finite, or far out of range", head);
    }
    const Eigen::SelfAdjointEigenSolver<Square> solver(mean);
    BasicMatrix<double> rows(n, n);
    for (int64_t k = 0; k < n; ++k) {
      for (int64_t c = 0; c < n; ++c) rows(k, c) = solver.eigenvectors()(c, k);
      balance.scale.push_back(std::pow(solver.eigenvalues()(k), alpha));
    }
    QUAROT_ASSIGN_OR_RETURN(const Orthogonal basis, Orthogonal::dense(std::move(rows)));
    balance.bases.push_back(basis);
  }
  return balance;
}

}  // namespace quarot
