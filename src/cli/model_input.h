// MODEL of the command line, opened.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "model/checkpoint.h"
#include "recipe/prepare.h"

namespace quarot::cli {

struct ModelInput {
  std::string path;

  void add_to(CLI::App& command);
};

struct OpenModel {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Tokenizer> tokenizer;
};

Result<OpenModel> open_model(const ModelInput& input);

// What calls of one command have in common: a model run as its recipe says, on the simulated
// backend.
struct RunnableModel {
  std::unique_ptr<Tokenizer> tokenizer;
  PreparedModel prepared;
};
Result<RunnableModel> open_runnable(const ModelInput& input, const Recipe& recipe,
                                    const std::optional<std::filesystem::path>& calibration,
                                    Progress& progress);

}  // namespace quarot::cli
