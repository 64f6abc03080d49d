// Bases of the residual stream that calibration finds, one for the whole model, fused as R1 is.
#pragma once

#include "base/progress.h"
#include "model/model.h"
#include "recipe/quantize.h"
#include "recipe/recipe.h"
#include "rotation/orthogonal.h"

namespace quarot {

// From what all norms of the float layers give before their gains, over the recipe's calibration
// tokens:
//
//   kPrincipal  SliceGPT's rotation (Ashkboos et al. 2024, section 3), with nothing sliced away:
//   row
//               k is the k-th eigenvector of the mean x·xᵀ, by falling eigenvalue; each row's
//               largest element is positive
//   kLearned    the randomised Hadamard of the recipe's seed, turned until its rows are flat
//               (rotation/flat_basis.h), on a sample of 32 rows for each of the stream's channels
//               or 1 GiB of them, evenly spread over the tokens and the norms
//
// Nothing for a recipe whose basis needs no calibration. `floats` gives the layers in the model's
// own basis, `embed` tokens' rows of its embedding.
Result<std::optional<Orthogonal>> residual_basis(const Recipe& recipe, const ModelConfig& config,
                                                 std::span<const std::vector<Token>> windows,
                                                 LayerPipeline::Embed embed,
                                                 const NextLayer& floats, Progress& progress,
                                                 Device device = Device::kCpu);

}  // namespace quarot
