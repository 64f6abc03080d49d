#include "quant/regression.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/error.h"
#include "quant/cholesky.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr int64_t kTokens = 2048;  // a block: bounds the copies and the length of a float32 sum
constexpr int64_t kRows = 64;      // solved together

}  // namespace

void CrossMoment::add(ConstMatrixRef outputs, ConstMatrixRef inputs) {
  assert(outputs.rows() == inputs.rows());
  assert(outputs.cols() == mean_.rows() && inputs.cols() == mean_.cols());
  for (int64_t first = 0; first < inputs.rows(); first += kTokens) {
    const int64_t count = std::min(kTokens, inputs.rows() - first);
    add_block(outputs.rows(first, count), inputs.rows(first, count));
  }
}

void CrossMoment::add_block(ConstMatrixRef outputs, ConstMatrixRef inputs) {
  const auto total = static_cast<double>(tokens_ + inputs.rows());
  const auto keep = static_cast<float>(static_cast<double>(tokens_) / total);
  for (float& value : mean_.elements()) value *= keep;
  Matrix y = transposed(outputs);
  for (float& value : y.elements()) value *= static_cast<float>(2.0 / total);
  matmul(y, inputs, mean_, true);
  tokens_ += inputs.rows();
}

Result<Matrix> regress(const CrossMoment& cross, const Hessian& hessian, double ridge) {
  const Matrix& h = hessian.matrix();
  const Matrix& c = cross.matrix();
  if (h.rows() != c.cols() || hessian.tokens() != cross.tokens() || !(ridge > 0)) {
    return error(ErrorCode::kInvalidArgument,
                 "regression: {} inputs of {} tokens under a Hessian of {} inputs of {} tokens, "
                 "ridge {}; expected the same of both, and a ridge above 0",
                 c.cols(), cross.tokens(), h.rows(), hessian.tokens(), ridge);
  }
  const int64_t n = h.rows();
  double trace = 0;
  for (int64_t i = 0; i < n; ++i) trace += double{h(i, i)};
  // Inputs that were all zero say nothing: D = 0.
  const double added = trace > 0 ? ridge * trace / static_cast<double>(n) : 1;
  BasicMatrix<double> factor(n, n);
  for_each_block(n, [&](int64_t r) {
    for (int64_t i = 0; i <= r; ++i) factor(r, i) = double{h(r, i)};
    factor(r, r) += added;
  });
  if (!std::isfinite(trace) || !cholesky(factor.view())) {
    return error(ErrorCode::kInvalidArgument,
                 "regression: the Hessian of {} inputs is not one of finite inputs", n);
  }
  Matrix result(c.rows(), n);
  for_each_block((c.rows() + kRows - 1) / kRows, [&](int64_t i) {
    const int64_t first = i * kRows;
    const int64_t count = std::min(kRows, c.rows() - first);
    BasicMatrix<double> rows(count, n);
    std::ranges::copy(c.elements().subspan(first * n, count * n), rows.data());
    solve_cholesky(factor, rows.view());
    std::ranges::transform(rows.elements(), result.row_data(first),
                           [](double x) { return static_cast<float>(x); });
  });
  return result;
}

}  // namespace quarot
