#include "tensor/gemm.h"

#include <dnnl.h>

#include <algorithm>
#include <cassert>

namespace quarot {

namespace {

void product(ConstMatrixRef a, char transposed, ConstMatrixRef b, int64_t inner, MatrixRef y,
             bool accumulate) {
  if (y.empty()) return;
  if (inner == 0) {
    if (accumulate) return;
    for (int64_t r = 0; r < y.rows(); ++r) std::ranges::fill(y.row(r), 0.0F);
    return;
  }
  // The only failures are bad shapes and exhausted memory: the shapes are asserted by the callers.
  [[maybe_unused]] const dnnl_status_t status =
      dnnl_sgemm('N', transposed, y.rows(), y.cols(), inner, 1.0F, a.data(), a.stride(), b.data(),
                 b.stride(), accumulate ? 1.0F : 0.0F, y.data(), y.stride());
  assert(status == dnnl_success);
}

}  // namespace

void matmul_transposed(ConstMatrixRef x, ConstMatrixRef w, MatrixRef y, bool accumulate) {
  assert(x.cols() == w.cols() && x.rows() == y.rows() && w.rows() == y.cols());
  product(x, 'T', w, x.cols(), y, accumulate);
}

void matmul(ConstMatrixRef a, ConstMatrixRef b, MatrixRef y, bool accumulate) {
  assert(a.cols() == b.rows() && a.rows() == y.rows() && b.cols() == y.cols());
  product(a, 'N', b, a.cols(), y, accumulate);
}

}  // namespace quarot
