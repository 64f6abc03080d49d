// MODEL of the command line, opened.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/common.h"
#include "model/checkpoint.h"
#include "recipe/prepare.h"
#include "runtime/make_backend.h"

namespace quarot::cli {

struct ModelInput {
  std::string path;
  std::string execution = "auto";

  void add_to(CLI::App& command);
  void add_execution_to(CLI::App& command);  // for commands that run the model
};

constexpr const char* execution_name(Execution execution) {
  return execution == Execution::kPacked ? "packed" : "simulated";
}

struct OpenModel {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Tokenizer> tokenizer;
};

Result<OpenModel> open_model(const ModelInput& input);

// A model ready to run as its recipe says.
struct RunnableModel {
  std::unique_ptr<Tokenizer> tokenizer;
  Recipe recipe;
  std::string calibration;  // as PreparedModel has it
  Execution execution = Execution::kSimulated;
  std::unique_ptr<Backend> backend;
};
Result<RunnableModel> make_runnable(OpenModel open, const ModelInput& input, const Recipe& recipe,
                                    const std::optional<std::filesystem::path>& calibration,
                                    Device device, Progress& progress);

// Opened and made ready at once.
Result<RunnableModel> open_runnable(const ModelInput& input, const RecipeOptions& options,
                                    Device device, Progress& progress);

}  // namespace quarot::cli
