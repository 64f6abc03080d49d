// The clip ratio of a weight's grid, by search (GPTQ's reference WeightQuantizer with mse; QuaRot
// section 4): of p = 1, 0.99, … 0.21 the first that minimises Σ|q − w|^2.4.
#pragma once

#include <cstdint>
#include <span>

#include "base/function_ref.h"
#include "quant/quantizer.h"

namespace quarot {

inline constexpr int kClipCandidates = 80;

// The i-th candidate: 1 − i/100.
float clip_candidate(int i);

// The best of grid_of(p) over the candidates. A sum is approximated to about 1e-6 of itself.
Grid search_clip(std::span<const float> w, FunctionRef<Grid(float)> grid_of);

}  // namespace quarot
