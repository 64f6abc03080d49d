#include "quant/output_clip.h"

#include <algorithm>
#include <limits>

#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr int kCandidates = 16;
constexpr float kStep = 0.04F;

// dᵢ·H·dᵢᵀ of every row of weight − rounded.
std::vector<double> output_errors(ConstMatrixRef weight, const Matrix& rounded, const Matrix& h) {
  Matrix difference(weight);
  for (int64_t i = 0; i < difference.size(); ++i) difference.data()[i] -= rounded.data()[i];
  Matrix product(weight.rows(), weight.cols());
  matmul_transposed(difference, h, product);
  std::vector<double> errors(static_cast<size_t>(weight.rows()), 0.0);
  for (int64_t r = 0; r < weight.rows(); ++r) {
    for (int64_t c = 0; c < weight.cols(); ++c)
      errors[static_cast<size_t>(r)] += double{difference(r, c)} * product(r, c);
  }
  return errors;
}

void copy_row(const QuantizedWeight& from, int64_t r, QuantizedWeight& to) {
  std::ranges::copy(from.values.row(r), to.values.row(r).begin());
  std::ranges::copy(from.scales.row(r), to.scales.row(r).begin());
  std::ranges::copy(from.zeros.row(r), to.zeros.row(r).begin());
}

}  // namespace

QuantizedWeight round_with_output_clip(const WeightQuant& q, ConstMatrixRef weight,
                                       const Hessian& hessian) {
  QuantizedWeight best;
  std::vector<double> least(static_cast<size_t>(weight.rows()),
                            std::numeric_limits<double>::infinity());
  for (int i = 0; i < kCandidates; ++i) {
    WeightQuant clipped = q;
    clipped.search_clip = false;
    clipped.clip = 1 - kStep * static_cast<float>(i);
    const QuantizedWeight rounded = round_to_nearest(clipped, weight);
    if (i == 0) best = rounded;
    const std::vector<double> errors =
        output_errors(weight, rounded.dequantize(), hessian.matrix());
    for (int64_t r = 0; r < weight.rows(); ++r) {
      double& smallest = least[static_cast<size_t>(r)];
      if (errors[static_cast<size_t>(r)] >= smallest) continue;
      smallest = errors[static_cast<size_t>(r)];
      copy_row(rounded, r, best);
    }
  }
  best.quant = q;
  return best;
}

}  // namespace quarot
