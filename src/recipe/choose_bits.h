// Which sites of which layers get 8 bits, where a recipe has a budget for them: those whose
// rounding does the most harm for what 8 bits cost there.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "recipe/quantize.h"

namespace quarot {

// ‖ĥ − h‖²/‖h‖² of the residual stream behind the last layer, a token's mean, when the activations
// at one site alone are rounded, or the weights there alone to the nearest: by layer and
// site_index().
using SiteErrors = std::vector<std::array<double, kSites.size()>>;

// The sites with the largest errors for their multiply-adds, one after another while there is
// room: so many bits on average, of `bits` and 8, over all multiply-adds.
std::vector<std::vector<bool>> choose_within(double budget, int bits, const SiteErrors& errors,
                                             const ModelConfig& config);

// The recipe with rules in place of its budgets; the same, where it has none. The errors are
// measured on the CPU, on a few of the calibration tokens, in the float model in the recipe's
// bases, whose layers `floats` gives: for each site of each layer the tokens run through all layers
// behind it. `found`: see Transformer.
Result<Recipe> choose_bits(const Recipe& recipe, const ModelConfig& config,
                           std::span<const std::vector<Token>> windows, LayerPipeline::Embed embed,
                           const NextLayer& floats, Progress& progress, Device device,
                           const std::optional<Orthogonal>& found);

}  // namespace quarot
