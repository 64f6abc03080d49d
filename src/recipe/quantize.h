// From a float model and a recipe to the model the recipe describes, weights simulated.
#pragma once

#include "base/progress.h"
#include "recipe/calibration.h"
#include "recipe/recipe.h"

namespace quarot {

// The scaling before rotating, DESIGN.md section 3: s = (Σ W²/E x²)^(α/2) at each site, W all that
// read it. A rotated residual stream has no norm gain to absorb a scale: there only V and the FFN
// are scaled.
LayerScales balance_scales(const Recipe& recipe, const ModelConfig& config, const Layer& layer,
                           const LayerStatistics& statistics);

LayerCenters cache_centers(const Recipe& recipe, const LayerStatistics& statistics);

// Moves the model into the recipe's bases. `statistics` may be empty where the recipe needs none.
Status transform_model(const Recipe& recipe, const std::vector<LayerStatistics>& statistics,
                       Model& model, Progress& progress);

// Rounds the weights of all layers in place. For GPTQ `windows` are the calibration tokens.
Status quantize_weights(const Recipe& recipe, const std::vector<std::vector<Token>>& windows,
                        Model& model, Progress& progress);

}  // namespace quarot
