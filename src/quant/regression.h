// Linear least squares over the inputs that GPTQ's Hessian has seen: what a weight must change by
// so that its outputs come nearest to others.
#pragma once

#include "quant/hessian.h"
#include "quarot/status.h"

namespace quarot {

// 2·E[y xᵀ] over batches of outputs y that are missing and the inputs x beside them: a running mean
// like the Hessian, with its factor.
class CrossMoment {
 public:
  CrossMoment(int64_t outputs, int64_t inputs) : mean_(outputs, inputs, 0.0F) {}
  CrossMoment(Matrix matrix, int64_t tokens) : mean_(std::move(matrix)), tokens_(tokens) {}
  void add(ConstMatrixRef outputs, ConstMatrixRef inputs);  // [t, outputs], [t, inputs]
  int64_t tokens() const { return tokens_; }
  const Matrix& matrix() const { return mean_; }

 private:
  void add_block(ConstMatrixRef outputs, ConstMatrixRef inputs);

  Matrix mean_;
  int64_t tokens_ = 0;
};

// The D [outputs, inputs] that minimises E‖y − D·x‖² + ridge·h·‖D‖², h the mean of the Hessian's
// diagonal: ridge regression, D = E[y xᵀ]·(E[x xᵀ] + ridge·h·I)⁻¹, in float64. Both must have seen
// the same inputs. kInvalidArgument: other shapes or numbers of tokens, a ridge that is not above
// 0, inputs that are not finite.
Result<Matrix> regress(const CrossMoment& cross, const Hessian& hessian, double ridge);

}  // namespace quarot
