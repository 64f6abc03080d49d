// Rounds the linears of one layer, which is in the recipe's bases already, and leaves them as
// integers.
#pragma once

#include <array>

#include "recipe/layer_stream.h"
#include "recipe/recipe.h"

namespace quarot {

// How far rounding moved a linear, relative and squared.
struct RoundingError {
  double weight = 0;  // ‖W − Ŵ‖² / ‖W‖²
  double output = 0;  // tr((W−Ŵ) H (W−Ŵ)ᵀ) / tr(W H Wᵀ), H of the calibration tokens; GPTQ's
};
using LayerErrors = std::array<RoundingError, kRoles.size()>;  // by role

// Each weight to the nearest.
Result<LayerErrors> round_to_nearest(const Recipe& recipe, int64_t index, Layer& layer);

// Each by GPTQ, or with the clip ratios that suit the outputs, under the Hessian of the inputs that
// the already rounded ones before it, in this layer and in those before, produce (Frantar et al.
// 2023, section 3.3). Runs the stream through the layer. Memory beside both: one Hessian and its
// factor.
Result<LayerErrors> round_under_hessians(const Recipe& recipe, int64_t index, LayerStream& stream,
                                         Layer& layer);

}  // namespace quarot
