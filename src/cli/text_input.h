// --text and how it is cut into windows: what the commands that measure perplexity share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/model_input.h"
#include "eval/perplexity.h"

namespace quarot::cli {

struct TextInput {
  std::string path;
  std::string protocol = "paper";
  PerplexityOptions perplexity;

  void add_to(CLI::App& command);
  Status apply();  // completes `perplexity`; kInvalidArgument for an unknown protocol
  Result<std::vector<EvalWindow>> windows(const Tokenizer& tokenizer) const;
};

}  // namespace quarot::cli
