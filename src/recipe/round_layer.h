// Rounds the linears of one layer, which is in the recipe's bases already, and leaves them as
// integers; as floats where integers do not say all of it (WeightRounder).
#pragma once

#include <array>
#include <optional>

#include "recipe/recipe.h"
#include "runtime/layer_stream.h"

namespace quarot {

// How far rounding moved a linear, relative and squared.
struct RoundingError {
  double weight = 0;  // ‖W − Ŵ‖² / ‖W‖²
  double output = 0;  // tr((W−Ŵ) H (W−Ŵ)ᵀ) / tr(W H Wᵀ), H of the calibration tokens; GPTQ's
};
using LayerErrors = std::array<RoundingError, kRoles.size()>;  // by role

struct RoundedLayer {
  LayerErrors errors{};
  double passing = 0;  // seconds of it that the tokens took
};

// Each weight to the nearest.
Result<LayerErrors> round_to_nearest(const Recipe& recipe, int64_t index, Layer& layer);

// Each by GPTQ, or with the clip ratios that suit the outputs, under the Hessian of the inputs that
// the already rounded ones before it, in this layer and in those before, produce (Frantar et al.
// 2023, section 3.3). Runs the stream through the layer. Memory beside both: one Hessian and its
// factor.
//
// With a target, the float model (its layer stands in its stream, in the model's own basis), the
// two linears that write the residual stream are moved first, by ridge regression on their inputs
// x, to where the stream behind them comes nearest to the float model's: W + D, D the least squares
// answer to h_float − (h + W·x) ≈ D·x. So each repairs what all the rounding before it has done to
// the stream, not only its own (as LoaQ, Lin and Wan 2025, and QEP, Arai and Ichikawa 2025, do for
// the outputs). q, k, v, gate and up keep their weights: what regression on noisy inputs would give
// them is attenuated, and softmax and gates do not forgive that.
Result<RoundedLayer> round_under_hessians(const Recipe& recipe, int64_t index, LayerStream& stream,
                                          const ResidualTarget* target, Layer& layer);

}  // namespace quarot
