// GPTQ over a whole model: layer by layer, every linear under the Hessian of the inputs that the
// already rounded ones before it produce (Frantar et al. 2023, section 3.3).
#pragma once

#include <vector>

#include "base/progress.h"
#include "recipe/recipe.h"

namespace quarot {

// Rounds the linears of a model that is in the recipe's bases already. Memory beside the model: the
// residual stream of all windows, and one Hessian. Leaves each weight as integers.
Status quantize_by_gptq(const Recipe& recipe, const std::vector<std::vector<Token>>& windows,
                        Model& model, Progress& progress);

}  // namespace quarot
