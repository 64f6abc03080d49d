// The clip ratio of each layer's activations at each site, by the error of the outputs: what is
// best depends on the bits, on the groups, on how a site's rows are distributed, and on what reads
// them.
#pragma once

#include <array>

#include "recipe/recipe.h"

namespace quarot {

using SiteSamples = std::array<Matrix, kSites.size()>;  // rows, by site_index()

// For each site that c of 1, 0.95, … 0.6 with the least ‖(Q_c(x̃) − x̃)·W̃ᵀ‖² over the samples x̃ and
// all linears W̃ that read there, float and in the recipe's bases as x̃; of equals the largest. The
// outputs are combined into at most 128 by random signs of the recipe's seed: where there are more,
// the norm is estimated, for all c by the same combinations.
SiteClips search_clips(const Recipe& recipe, int64_t index, const Layer& layer,
                       const SiteSamples& inputs);

}  // namespace quarot
