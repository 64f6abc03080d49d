// From a path and a recipe to a model ready to run: what the library and the commands begin with.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "model/checkpoint.h"
#include "quarot/engine.h"
#include "recipe/prepare.h"
#include "runtime/backend.h"

namespace quarot {

struct OpenModel {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Tokenizer> tokenizer;
};
Result<OpenModel> open_model(const std::filesystem::path& path);

// A recipe by its name, or from a file that ends in .json.
Result<Recipe> find_recipe(const std::string& name_or_file);

struct RunnableModel {
  std::unique_ptr<Tokenizer> tokenizer;
  Recipe recipe;
  std::vector<LayerReport> layers;  // as PreparedModel has them
  std::string calibration;          // as PreparedModel has it
  Execution execution = Execution::kSimulated;
  std::unique_ptr<Backend> backend;
};
Result<RunnableModel> make_runnable(OpenModel open, const Recipe& recipe, Execution execution,
                                    Device device,
                                    const std::optional<std::filesystem::path>& calibration,
                                    Progress& progress);

}  // namespace quarot
