#include "probe/cache_treatments.h"

#include <algorithm>

#include "probe/site_statistics.h"
#include "rotation/orthogonal.h"

namespace quarot {

namespace {

Matrix mean_row(ConstMatrixRef rows) {
  Matrix mean(1, rows.cols());
  for (int64_t c = 0; c < rows.cols(); ++c) {
    double sum = 0;
    for (int64_t r = 0; r < rows.rows(); ++r) sum += rows(r, c);
    mean(0, c) = static_cast<float>(sum / static_cast<double>(rows.rows()));
  }
  return mean;
}

Matrix without(ConstMatrixRef rows, const Matrix& row) {
  Matrix result(rows);
  for (int64_t r = 0; r < result.rows(); ++r) {
    for (int64_t c = 0; c < result.cols(); ++c) result(r, c) -= row(0, c);
  }
  return result;
}

}  // namespace

CacheErrors treat_cache(const CacheQuant& quant, int64_t head_dim, ConstMatrixRef calibration,
                        ConstMatrixRef held_out) {
  CacheErrors errors{};
  const Orthogonal hadamard = Orthogonal::hadamard(head_dim);
  const double scale = norm_of(without(held_out, mean_row(held_out)));
  const Matrix centred = without(held_out, mean_row(calibration));
  for (size_t b = 0; b < kTrialBits.size(); ++b) {
    CacheQuant trial = quant;
    trial.bits = kTrialBits[b];
    for (size_t t = 0; t < kCacheTreatments.size(); ++t) {
      const bool centres = t % 2 == 1;
      const bool turns = t >= 2;
      const ConstMatrixRef rows = centres ? centred.view() : held_out;
      Matrix heads(rows.rows() * rows.cols() / head_dim, head_dim);
      for (int64_t r = 0; r < rows.rows(); ++r)
        std::ranges::copy(rows.row(r), heads.elements().begin() + r * rows.cols());
      if (turns) hadamard.apply(heads.view());
      const Matrix exact(heads.view());
      simulate(trial, heads);
      errors[b][t] = scale > 0 ? distance(heads, exact) / scale : 0;
    }
  }
  return errors;
}

}  // namespace quarot
