// --text and how it is cut into windows: what the commands that measure perplexity share.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/model_input.h"
#include "cli/task_input.h"
#include "eval/perplexity.h"

namespace quarot::cli {

struct TextInput {
  std::string path;
  std::string protocol = "paper";
  std::optional<int64_t> window;  // else perplexity's, or the model's context where that is less
  PerplexityOptions perplexity;

  void add_to(CLI::App& command);
  // Usage with neither --text nor --tasks is wrong.
  void require(CLI::App& command, const TaskInput& tasks) const;
  Status apply();  // completes `perplexity`; kInvalidArgument for an unknown protocol
  // None without --text. Completes `perplexity` too. kInvalidArgument for windows beyond the
  // model's context, where what it predicts means little.
  Result<std::vector<EvalWindow>> windows(const OpenModel& model);
};

}  // namespace quarot::cli
