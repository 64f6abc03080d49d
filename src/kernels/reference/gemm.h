// What the integer matrix product means, in the plainest code: every implementation equals it bit
// for bit.
#pragma once

#include <cstdint>

namespace quarot::reference {

// y[t, n] = bias[n] + Σ_g ((float)(Σ_{k in g} a[t,k]·w[n,k]) · sa[t,g]) · sw[n,g], and += with
// `accumulate` (the residual stream). The inner sum is int32, exact while k ≤ 131072. The float
// arithmetic is float32, rounded after each operation (no fused multiply-add): a group's term is
// two products in the order written, terms add up in ascending g starting from zero, then the
// bias, and last the old y (y + term).
struct Gemm {
  int64_t rows = 0;                 // tokens t
  int64_t outputs = 0;              // n
  int64_t inputs = 0;               // k
  int64_t group = 0;                // inputs that share a weight scale; 0: all
  const int8_t* a = nullptr;        // [rows, inputs]
  const int8_t* w = nullptr;        // [outputs, inputs]
  const float* a_scales = nullptr;  // [rows, a_scale_groups]
  int64_t a_scale_groups = 1;       // 1: one scale a token; else inputs/group
  const float* w_scales = nullptr;  // [outputs, inputs/group]
  const float* bias = nullptr;      // [outputs], or null
  bool accumulate = false;
  float* y = nullptr;  // [rows, outputs]
};
void gemm(const Gemm& args);

}  // namespace quarot::reference
