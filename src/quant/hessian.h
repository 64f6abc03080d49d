// What GPTQ and its kin know of a linear's inputs: the Hessian H = 2/n Σ x xᵀ of its output error.
#pragma once

#include <cstdint>
#include <utility>

#include "tensor/matrix.h"

namespace quarot {

// Accumulates H over batches of inputs, as a running mean: no number of tokens overflows. The same
// batches give the same bits on any number of threads.
class Hessian {
 public:
  explicit Hessian(int64_t width) : mean_(width, width, 0.0F) {}
  Hessian(Matrix matrix, int64_t tokens) : mean_(std::move(matrix)), tokens_(tokens) {}
  void add(ConstMatrixRef inputs);  // [t, width]
  int64_t tokens() const { return tokens_; }
  const Matrix& matrix() const { return mean_; }  // symmetric, both triangles filled

 private:
  void add_block(ConstMatrixRef inputs);

  Matrix mean_;
  int64_t tokens_ = 0;
};

}  // namespace quarot
