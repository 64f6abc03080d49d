// The diagonals before the rotations of a layer's sites: what a recipe's scaling makes of the
// weights that read a site and of what calibration saw there.
#pragma once

#include <array>

#include "recipe/calibration.h"
#include "recipe/recipe.h"

namespace quarot {

using SiteAlphas = std::array<double, kSites.size()>;  // the exponents, by site_index()

struct ScaledSites {
  LayerScales scales;
  SiteAlphas alphas{};  // 0 where a site is not scaled
};

// The channels' scales at one site with the exponent α; the formulas are at `Scaling`. Channels
// that carry nothing, or are read by nothing, keep scale 1. At the attention output one scale
// serves all query heads of a KV head: their energies and moments add up, of their maxima the
// largest counts.
std::vector<double> site_scale(Scaling scaling, double alpha, const ModelConfig& config, Space site,
                               const Layer& layer, const LayerStatistics& statistics);

// All sites that the recipe scales. A rotated residual stream has no norm gain to absorb a scale:
// there only V and the FFN are scaled. Where α is searched: of 0, 0.05, … 1 the one with the least
// error of the outputs, ‖W·x − Q(W̃)·Q(x̃)‖² over the sample and all readers, weights to the nearest
// without clipping, everything in the recipe's basis of the site.
ScaledSites scale_sites(const Recipe& recipe, const ModelConfig& config,
                        const Transformer& transformer, int64_t index, const Layer& layer,
                        const LayerStatistics& statistics);

}  // namespace quarot
