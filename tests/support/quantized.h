// A model in memory as a recipe makes it.
#pragma once

#include "recipe/quantize.h"
#include "recipe/residual_basis.h"
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
  const auto embed = [&](std::span<const Token> tokens) {
    return Result<Matrix>(embedding_rows(model.embedding, tokens));
  };
  const auto found =
      value_of(residual_basis(recipe, model.config, windows, embed, floats(), progress, device));
  expect_ok(complete(
      model,
      value_of(quantize_model(recipe, windows, floats(), model, progress, device, found)).next));
  return model;
}

}  // namespace quarot::testing
