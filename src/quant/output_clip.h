// Clip ratios by what they do to the outputs: AWQ's auto-clip (Lin et al. 2024), OmniQuant's
// learnable weight clipping (Shao et al. 2024, section 3.2), found here by search instead of
// gradient descent.
#pragma once

#include "quant/hessian.h"
#include "quant/quantizer.h"

namespace quarot {

// To the nearest, each row, all its groups together, with that clip ratio of 1, 0.96, … 0.4 that
// leaves the least (w − ŵ)·H·(w − ŵ)ᵀ.
QuantizedWeight round_with_output_clip(const WeightQuant& q, ConstMatrixRef weight,
                                       const Hessian& hessian);

}  // namespace quarot
