#include "model/basis.h"

#include <algorithm>
#include <cassert>

namespace quarot {

namespace {

// Rows converted to float64 at a time: enough to keep the transforms busy, little beside a layer.
constexpr int64_t kBlock = 256;

void multiply(MatrixView<double> rows, std::span<const double> diagonal, bool invert) {
  for (int64_t r = 0; r < rows.rows(); ++r) {
    double* row = rows.row_data(r);
    for (size_t i = 0; i < diagonal.size(); ++i)
      row[i] = invert ? row[i] / diagonal[i] : row[i] * diagonal[i];
  }
}

}  // namespace

void Basis::scale(std::vector<double> diagonal) {
  if (!diagonal.empty()) factors_.emplace_back(std::move(diagonal));
}

void Basis::rotate(const Orthogonal& op) {
  if (!op.is_identity()) factors_.emplace_back(op);
}

void Basis::apply(MatrixView<double> rows) const {
  for (const auto& factor : factors_) {
    if (const auto* op = std::get_if<Orthogonal>(&factor)) {
      op->apply(rows);
    } else {
      multiply(rows, std::get<std::vector<double>>(factor), false);
    }
  }
}

void Basis::apply_inverse_transposed(MatrixView<double> rows) const {
  // (F₂F₁)⁻ᵀ = F₂⁻ᵀF₁⁻ᵀ: the same order; an orthogonal factor is its own inverse transpose.
  for (const auto& factor : factors_) {
    if (const auto* op = std::get_if<Orthogonal>(&factor)) {
      op->apply(rows);
    } else {
      multiply(rows, std::get<std::vector<double>>(factor), true);
    }
  }
}

void change_input_basis(Matrix& weight, std::span<const float> gain, const Basis& basis) {
  if (gain.empty() && basis.is_identity()) return;
  assert(gain.empty() || static_cast<int64_t>(gain.size()) == weight.cols());
  BasicMatrix<double> block;
  for (int64_t first = 0; first < weight.rows(); first += kBlock) {
    const int64_t count = std::min(kBlock, weight.rows() - first);
    block.resize(count, weight.cols());
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < weight.cols(); ++c) {
        const double factor = gain.empty() ? 1.0 : double{gain[static_cast<size_t>(c)]};
        block(r, c) = factor * weight(first + r, c);
      }
    }
    basis.apply_inverse_transposed(block.view());
    for (int64_t r = 0; r < count; ++r) {
      std::ranges::transform(block.row(r), weight.row(first + r).begin(),
                             [](double x) { return static_cast<float>(x); });
    }
  }
}

void change_output_basis(Matrix& weight, const Basis& basis) {
  if (basis.is_identity()) return;
  BasicMatrix<double> block;  // some columns of the weight, as rows
  for (int64_t first = 0; first < weight.cols(); first += kBlock) {
    const int64_t count = std::min(kBlock, weight.cols() - first);
    block.resize(count, weight.rows());
    for (int64_t r = 0; r < weight.rows(); ++r) {
      for (int64_t c = 0; c < count; ++c) block(c, r) = weight(r, first + c);
    }
    basis.apply(block.view());
    for (int64_t r = 0; r < weight.rows(); ++r) {
      for (int64_t c = 0; c < count; ++c) weight(r, first + c) = static_cast<float>(block(c, r));
    }
  }
}

void change_basis(std::vector<float>& values, const Basis& basis) {
  if (values.empty() || basis.is_identity()) return;
  BasicMatrix<double> row(1, static_cast<int64_t>(values.size()));
  std::ranges::copy(values, row.elements().begin());
  basis.apply(row.view());
  std::ranges::transform(row.elements(), values.begin(),
                         [](double x) { return static_cast<float>(x); });
}

void change_basis(Matrix& rows, const Basis& basis) {
  if (basis.is_identity()) return;
  BasicMatrix<double> wide(rows.rows(), rows.cols());
  std::ranges::copy(rows.elements(), wide.elements().begin());
  basis.apply(wide.view());
  std::ranges::transform(wide.elements(), rows.elements().begin(),
                         [](double x) { return static_cast<float>(x); });
}

}  // namespace quarot
