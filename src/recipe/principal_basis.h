// The residual stream's principal components as its basis: SliceGPT's rotation (Ashkboos et al.
// 2024, section 3), one for the whole model, with nothing sliced away.
#pragma once

#include "base/progress.h"
#include "model/model.h"
#include "quarot/execution.h"
#include "recipe/recipe.h"
#include "rotation/orthogonal.h"

namespace quarot {

// Row k is the k-th eigenvector, by falling eigenvalue, of the mean x·xᵀ of what all norms of the
// float layers give before their gains, over the recipe's calibration tokens. Each row's largest
// element is positive. `floats` gives the layers in the model's own basis; of `model` no more is
// needed than its embedding.
Result<Orthogonal> principal_basis(const Recipe& recipe,
                                   std::span<const std::vector<Token>> windows,
                                   const NextLayer& floats, const Model& model, Progress& progress,
                                   Device device = Device::kCpu);

}  // namespace quarot
