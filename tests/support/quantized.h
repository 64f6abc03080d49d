// A model in memory as a recipe makes it.
#pragma once

#include "recipe/quantize.h"
#include "support/model.h"

namespace quarot::testing {

inline Model quantized(const Recipe& recipe, const Model& original,
                       const std::vector<std::vector<Token>>& windows = {}) {
  NoProgress progress;
  Model model = original;
  model.layers.clear();
  const auto load = [&](int64_t i) {
    return Result<Layer>(original.layers[static_cast<size_t>(i)]);
  };
  value_of(quantize_model(recipe, windows, load, model, progress));
  return model;
}

}  // namespace quarot::testing
