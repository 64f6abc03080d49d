// Sampling options by their common names, shared by generate and chat.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/generate.h"

namespace quarot::cli {

inline void add_generation_options(CLI::App& command, GenerationOptions& options) {
  constexpr const char* kGroup = "Sampling";
  const auto add = [&](const char* flag, auto& value, const char* text) {
    command.add_option(flag, value, text)->capture_default_str()->group(kGroup);
  };
  add("-n,--max-tokens", options.max_tokens, "tokens to generate at most");
  add("--temperature", options.sampling.temperature, "0: always the likeliest token");
  add("--top-k", options.sampling.top_k, "keep the k likeliest (0: all)");
  add("--top-p", options.sampling.top_p, "keep the likeliest that make up this share");
  add("--min-p", options.sampling.min_p, "keep those at least this share of the likeliest");
  add("--repeat-penalty", options.sampling.repeat_penalty,
      "above 1: discourage tokens seen lately");
  add("--stop", options.stop, "end before this text (may be given again)");
  command.add_flag("--ignore-eos", options.ignore_end, "go on past the end-of-text token")
      ->group(kGroup);
}

}  // namespace quarot::cli
