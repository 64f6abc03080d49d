// GPTQ (Frantar et al. 2023): rounds a weight column by column and lets the columns not yet rounded
// compensate, under the Hessian H = 2/n Σ x xᵀ of the layer's inputs.
#pragma once

#include "quant/hessian.h"
#include "quant/quantizer.h"

namespace quarot {

struct GptqOptions {
  int64_t block = 128;     // columns between two products; changes speed, the result by round-off
  float damp = 0.01F;      // of the mean diagonal; ×10 a retry until Cholesky succeeds
  bool act_order = false;  // columns by decreasing diagonal; with groups: static groups
};

// kInvalidArgument for blocks of no column and damping that is negative or senselessly large.
Status check(const GptqOptions& options);

struct GptqReport {
  float damp_used = 0;
  int64_t dead_columns = 0;  // inputs that were always zero: their weights become 0
  double error = 0;          // tr((W−Ŵ) H (W−Ŵ)ᵀ) / tr(W H Wᵀ)
  bool used_double = false;  // Cholesky needed float64
};

// weight [out, in], hessian [in, in]. A grid of a whole row comes from the weight as given; a
// group's from the weight as compensated when its turn comes, with act_order from the weight as
// given. With H = I the result is round_to_nearest's. The same on any number of threads.
// kInvalidArgument: options that make no sense, shapes that differ, no tokens, a weight or Hessian
// that is not finite.
Result<QuantizedWeight> gptq(const WeightQuant& q, const GptqOptions& options,
                             ConstMatrixRef weight, const Hessian& hessian,
                             GptqReport* report = nullptr);

}  // namespace quarot
