// The whole way from a checkpoint and a recipe to a model in memory that runs as the recipe says.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/progress.h"
#include "model/checkpoint.h"
#include "recipe/quantize.h"
#include "recipe/recipe.h"

namespace quarot {

struct PreparedModel {
  Model model;
  NextLayer next_layer;  // for those that `model` lacks; refers to what prepare_… was given
  Recipe recipe;
  // Of the layers given so far; null for a model that carries its recipe already.
  std::shared_ptr<const std::vector<LayerReport>> reports;
  std::string calibration;  // calibration_source()
};

// Calibration tokens for a recipe: from the text file, or, where there is none, written by the
// model itself, which then is in memory as a whole for a while.
Result<std::vector<std::vector<Token>>> calibration_windows(
    const Recipe& recipe, const Checkpoint& checkpoint, const Tokenizer& tokenizer,
    const std::optional<std::filesystem::path>& text, Progress& progress);

// Where these come from, for people; empty for a recipe that needs none.
std::string calibration_source(const Recipe& recipe,
                               const std::optional<std::filesystem::path>& text);

// Whether prepare_model() makes the same weights of both recipes, which then differ only in how
// activations and the cache are quantised.
bool same_weights(const Recipe& a, const Recipe& b);

// Loads, calibrates, rotates and quantises (simulated); the device is where calibration tokens run
// through the layers. A model that quarot wrote carries its
// recipe already: another one on top of it is kInvalidArgument. The layers are all yet to come …
Result<PreparedModel> prepare_outer(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                    const Recipe& recipe,
                                    const std::optional<std::filesystem::path>& calibration,
                                    Progress& progress, Device device = Device::kCpu);

// … or all there.
Result<PreparedModel> prepare_model(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                    const Recipe& recipe,
                                    const std::optional<std::filesystem::path>& calibration,
                                    Progress& progress, Device device = Device::kCpu);

// The recipe a checkpoint carries in its manifest; float where it has none.
Result<Recipe> recipe_of(const Checkpoint& checkpoint);

}  // namespace quarot
