#include "quant/cholesky.h"

#include <Eigen/Cholesky>
#include <algorithm>

#include "base/parallel.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr int64_t kTile = 128;

template <typename T>
using Dense = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <typename T>
auto as_eigen(MatrixView<T> m) {
  using Plain = Dense<std::remove_const_t<T>>;
  using Map = Eigen::Map<std::conditional_t<std::is_const_v<T>, const Plain, Plain>, 0,
                         Eigen::OuterStride<>>;
  return Map(m.data(), m.rows(), m.cols(), Eigen::OuterStride<>(m.stride()));
}

// y += a·bᵀ
void add_product(ConstMatrixRef a, ConstMatrixRef b, MatrixRef y) {
  matmul_transposed(a, b, y, true);
}
void add_product(MatrixView<const double> a, MatrixView<const double> b, MatrixView<double> y) {
  as_eigen(y).noalias() += as_eigen(a) * as_eigen(b).transpose();
}

template <typename T>
bool factor_tile(MatrixView<T> a) {
  auto tile = as_eigen(a);
  const Eigen::LLT<Eigen::Ref<Dense<T>>> llt(tile);
  tile.template triangularView<Eigen::StrictlyUpper>().setZero();
  return llt.info() == Eigen::Success && tile.allFinite();
}

// Left-looking: a column of tiles receives all that stands left of it in one long product, is
// factored at its top, and solved against that below.
template <typename T>
bool factor(MatrixView<T> a) {
  const int64_t n = a.rows();
  for (int64_t k = 0; k < n; k += kTile) {
    const int64_t width = std::min(kTile, n - k);
    const int64_t tiles = (n - k + kTile - 1) / kTile;
    const auto column = [&](int64_t i) {
      const int64_t first = k + i * kTile;
      return a.rows(first, std::min(kTile, n - first));
    };
    BasicMatrix<T> negated(MatrixView<const T>(a.rows(k, width).cols(0, k)));
    for (T& x : negated.elements()) x = -x;
    for_each_block(tiles, [&](int64_t i) {
      add_product(column(i).cols(0, k), negated, column(i).cols(k, width));
    });
    const auto top = column(0).cols(k, width);
    if (!factor_tile(top)) return false;
    for_each_block(tiles - 1, [&](int64_t i) {
      auto below = as_eigen(column(i + 1).cols(k, width));
      as_eigen(top)
          .template triangularView<Eigen::Lower>()
          .transpose()
          .template solveInPlace<Eigen::OnTheRight>(below);
    });
    for (int64_t r = 0; r < k; ++r) std::fill_n(a.row_data(r) + k, width, T{0});
  }
  return true;
}

}  // namespace

void for_each_block(int64_t count, FunctionRef<void(int64_t)> body) {
  parallel_for(std::max<int64_t>(count, 2), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < std::min(last, count); ++i) body(i);
  });
}

bool cholesky(MatrixView<float> a) { return factor(a); }
bool cholesky(MatrixView<double> a) { return factor(a); }

void solve_cholesky(MatrixView<const double> lower, MatrixView<double> rows) {
  const auto l = as_eigen(lower).triangularView<Eigen::Lower>();
  auto x = as_eigen(rows);
  l.transpose().solveInPlace<Eigen::OnTheRight>(x);
  l.solveInPlace<Eigen::OnTheRight>(x);
}

}  // namespace quarot
