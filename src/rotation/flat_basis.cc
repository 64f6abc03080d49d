#include "rotation/flat_basis.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr int64_t kTrials = 60;
constexpr int64_t kBlock = 1024;      // rows at a time
constexpr double kFirstAngle = 0.1;   // of the first step: root mean square over the directions
constexpr double kLargestTurn = 0.5;  // spectral norm, so that Newton–Schulz converges quickly
constexpr float kMomentum = 0.8F;
constexpr double kGrowth = 1.2;  // of the step after each that went down; halved otherwise

double norm(std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += double{x} * x;
  return std::sqrt(sum);
}

// Every row to ‖x‖² = size, and those of zeros or of no finite norm left out.
Matrix normalised(const Matrix& rows) {
  std::vector<float> kept;
  kept.reserve(static_cast<size_t>(rows.size()));
  for (int64_t r = 0; r < rows.rows(); ++r) {
    const double length = norm(rows.row(r));
    if (!(length > 0) || !std::isfinite(length)) continue;
    const double factor = std::sqrt(static_cast<double>(rows.cols())) / length;
    for (const float x : rows.row(r)) kept.push_back(static_cast<float>(x * factor));
  }
  Matrix result(std::ssize(kept) / rows.cols(), rows.cols());
  std::ranges::copy(kept, result.data());
  return result;
}

struct Point {
  Matrix basis;
  double loss = 0;
  Matrix gradient;  // antisymmetric A: the loss of (I − εA)·basis falls fastest
};

class FlatBasis {
 public:
  explicit FlatBasis(Matrix rows) : rows_(std::move(rows)), n_(rows_.cols()) {}

  bool empty() const { return rows_.empty(); }

  Point at(Matrix basis) const {
    Point point{std::move(basis), 0, {}};
    Matrix slopes(n_, n_, 0.0F);  // ∂loss/∂basis
    for (int64_t first = 0; first < rows_.rows(); first += kBlock) {
      const ConstMatrixRef rows = rows_.view().rows(first, std::min(kBlock, rows_.rows() - first));
      Matrix turned(rows.rows(), n_);
      matmul_transposed(rows, point.basis, turned);
      Matrix by_row(n_, rows.rows());  // ∂loss/∂turned, transposed
      for (const double loss : losses(turned, by_row)) point.loss += loss;
      matmul(by_row, rows, slopes, true);
    }
    point.gradient = antisymmetric(slopes, point.basis);
    return point;
  }

  // basis ← the orthogonal matrix nearest to (I − step·direction)·basis.
  Matrix turned(const Matrix& basis, const Matrix& direction, double step) const {
    Matrix result(basis.view());
    add_product(static_cast<float>(-step), direction, basis, result);
    for (int i = 0; i < 4; ++i) {
      Matrix gram(n_, n_);
      matmul_transposed(result, result, gram);
      const Matrix old(result.view());
      for (float& x : result.elements()) x *= 1.5F;
      add_product(-0.5F, gram, old, result);
    }
    return result;
  }

 private:
  static void add_product(float factor, const Matrix& a, const Matrix& b, Matrix& sum) {
    Matrix product(a.rows(), b.cols());
    matmul(a, b, product);
    for (int64_t i = 0; i < sum.size(); ++i) sum.data()[i] += factor * product.data()[i];
  }

  // (Σ y⁸)^¼ of each row y, and its slopes 2·(Σ y⁸)^−¾·y⁷.
  static std::vector<double> losses(const Matrix& turned, Matrix& slopes) {
    std::vector<double> result(static_cast<size_t>(turned.rows()));
    parallel_for(turned.rows(), 16, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        double sum = 0;
        for (const double y : turned.row(r)) sum += (y * y * y * y) * (y * y * y * y);
        const double root = std::sqrt(std::sqrt(sum));
        result[static_cast<size_t>(r)] = root;
        for (int64_t c = 0; c < turned.cols(); ++c) {
          const double y = turned(r, c);
          slopes(c, r) = static_cast<float>(2 * root / sum * (y * y * y * y) * (y * y * y));
        }
      }
    });
    return result;
  }

  Matrix antisymmetric(const Matrix& slopes, const Matrix& basis) const {
    Matrix product(n_, n_);
    matmul_transposed(slopes, basis, product);
    Matrix result(n_, n_);
    for (int64_t r = 0; r < n_; ++r) {
      for (int64_t c = 0; c < n_; ++c) result(r, c) = (product(r, c) - product(c, r)) / 2;
    }
    return result;
  }

  Matrix rows_;
  int64_t n_;
};

// By power iterations on the matrix, which is antisymmetric: a little less than it is.
double spectral_norm(const Matrix& matrix) {
  Matrix x(1, matrix.cols());
  for (int64_t c = 0; c < x.cols(); ++c) x(0, c) = c % 3 == 0 ? -1.0F : 1.0F;
  double length = 0;
  for (int i = 0; i < 20; ++i) {
    const double before = norm(x.elements());
    if (!(before > 0)) return 0;
    for (float& value : x.elements()) value = static_cast<float>(value / before);
    Matrix y(1, matrix.rows());
    matmul_transposed(x, matrix, y);
    length = norm(y.elements());
    x = std::move(y);
  }
  return length;
}

// One more Newton–Schulz iteration, in float64: what float32 left, about 1e-6, becomes its square.
BasicMatrix<double> orthonormalised(const Matrix& basis) {
  const int64_t n = basis.rows();
  BasicMatrix<double> result(n, n);
  std::ranges::copy(basis.elements(), result.data());
  const BasicMatrix<double> old(result.view());
  parallel_for(n, 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (double& x : result.row(r)) x *= 1.5;
      for (int64_t k = 0; k < n; ++k) {
        double dot = 0;
        for (int64_t c = 0; c < n; ++c) dot += old(r, c) * old(k, c);
        for (int64_t c = 0; c < n; ++c) result(r, c) -= 0.5 * dot * old(k, c);
      }
    }
  });
  return result;
}

}  // namespace

int64_t flat_basis_trials() { return kTrials; }

Result<Orthogonal> learn_flat_basis(Matrix rows, const Orthogonal& start, Progress& progress) {
  const int64_t n = start.size();
  assert(rows.cols() == n);
  const FlatBasis flat(normalised(rows));
  rows = Matrix();
  if (flat.empty()) return start;
  Matrix basis(n, n);
  std::ranges::transform(start.matrix().elements(), basis.data(),
                         [](double x) { return static_cast<float>(x); });
  Point best = flat.at(std::move(basis));
  Matrix direction(best.gradient.view());
  const double slope = norm(best.gradient.elements());
  double step = slope > 0 ? kFirstAngle * std::sqrt(static_cast<double>(n)) / slope : 0;
  for (int64_t i = 0; i < kTrials; ++i) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    const double largest = spectral_norm(direction);
    if (largest > 0) step = std::min(step, kLargestTurn / largest);
    Point next = flat.at(flat.turned(best.basis, direction, step));
    if (next.loss < best.loss) {
      best = std::move(next);
      for (int64_t k = 0; k < direction.size(); ++k)
        direction.data()[k] = kMomentum * direction.data()[k] + best.gradient.data()[k];
      step *= kGrowth;
    } else {
      direction = Matrix(best.gradient.view());
      step /= 2;
    }
    progress.advance(1);
  }
  return Orthogonal::dense(orthonormalised(best.basis));
}

}  // namespace quarot
