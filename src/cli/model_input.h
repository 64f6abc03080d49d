// MODEL of the command line, opened.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/common.h"
#include "engine/open_runnable.h"

namespace quarot::cli {

struct ModelInput {
  std::string path;
  std::string execution = "auto";

  void add_to(CLI::App& command);
  void add_execution_to(CLI::App& command);  // for commands that run the model
  Execution chosen_execution() const;
};

constexpr const char* execution_name(Execution execution) {
  return execution == Execution::kPacked ? "packed" : "simulated";
}

// What MODEL can be, for --help.
inline constexpr const char* kModelHelp =
    "a Hugging Face folder, a .safetensors or .gguf file, a llama2.c .bin, or what quarot wrote";

// Opened and made ready at once.
Result<RunnableModel> open_runnable(const ModelInput& input, const RecipeOptions& options,
                                    Device device, Progress& progress);

}  // namespace quarot::cli
