// GPTQ (Frantar et al. 2023): rounds a weight column by column and lets the columns not yet rounded
// compensate, under the Hessian H = 2/n Σ x xᵀ of the layer's inputs.
#pragma once

#include "quant/quantizer.h"

namespace quarot {

// Accumulates H over batches of inputs, as a running mean.
class Hessian {
 public:
  explicit Hessian(int64_t width) : sum_(width, width, 0.0F) {}
  void add(ConstMatrixRef inputs);  // [t, width]
  int64_t tokens() const { return tokens_; }
  const Matrix& matrix() const { return sum_; }

 private:
  Matrix sum_;
  int64_t tokens_ = 0;
};

struct GptqOptions {
  int64_t block = 128;
  float damp = 0.01F;      // of the mean diagonal; ×10 a retry until Cholesky succeeds
  bool act_order = false;  // columns by decreasing diagonal; with groups: static groups
};

struct GptqReport {
  float damp_used = 0;
  int64_t dead_columns = 0;  // inputs that were always zero: their weights become 0
  double error = 0;          // tr((W−Ŵ) H (W−Ŵ)ᵀ) / tr(W H Wᵀ)
  bool used_double = false;  // Cholesky needed float64
};

Result<QuantizedWeight> gptq(const WeightQuant& q, const GptqOptions& options,
                             ConstMatrixRef weight, const Hessian& hessian,
                             GptqReport* report = nullptr);

}  // namespace quarot
