// A model in memory as a recipe makes it.
#pragma once

#include "recipe/principal_basis.h"
#include "recipe/quantize.h"
#include "support/model.h"

namespace quarot::testing {

inline Model quantized(const Recipe& recipe, const Model& original,
                       const std::vector<std::vector<Token>>& windows = {},
                       Device device = Device::kCpu) {
  NoProgress progress;
  Model model = original;
  model.layers.clear();
  const auto floats = [&] {
    return NextLayer([&original, index = size_t{0}]() mutable {
      return Result<Layer>(original.layers[index++]);
    });
  };
  std::optional<Orthogonal> principal;
  if (recipe.uses_principal_basis())
    principal = value_of(principal_basis(recipe, windows, floats(), model, progress, device));
  expect_ok(complete(
      model, value_of(quantize_model(recipe, windows, floats(), model, progress, device, principal))
                 .next));
  return model;
}

}  // namespace quarot::testing
