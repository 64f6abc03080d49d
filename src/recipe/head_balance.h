// The scaling before V's rotation, by a whole matrix a head instead of a diagonal: it costs nothing
// at run time, since v_proj and o_proj absorb any.
#pragma once

#include "model/config.h"
#include "quant/gptq.h"
#include "rotation/orthogonal.h"

namespace quarot {

// A head's vectors x become diag(scale)·basis·x.
struct HeadBalance {
  std::vector<Orthogonal> bases;  // one a KV head
  std::vector<double> scale;      // [kv_heads · head_dim]
};

// Rounding noise that is the same in all directions of the rotated x̃ = T·x, and in proportion to
// ‖x̃‖, costs tr(G·M⁻¹)·tr(Σ·M) at the outputs, M = TᵀT, G = WᵀW of the reader, Σ = E x xᵀ. It is
// least where M is the geometric mean of G and Σ⁻¹, the M with M·Σ·M = G (as in WUSH, Chen et al.
// 2025); balance's diagonal is the best diagonal M. `scale` are the roots of M's eigenvalues, to
// the power 2·alpha (α = ½ is the optimum, 0 leaves the head as it is), `bases` its eigenvectors as
// rows. G and Σ are sums over the query heads of a KV head, each with a ten-thousandth of its mean
// eigenvalue added. weight [·, heads · head_dim] and inputs are o_proj's.
Result<HeadBalance> balance_heads(const ModelConfig& config, double alpha, const Matrix& weight,
                                  const Hessian& inputs);

}  // namespace quarot
