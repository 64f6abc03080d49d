// quarot generate: continue a prompt.
#include <cstdio>

#include "base/error.h"
#include "base/memory.h"
#include "cli/common.h"
#include "cli/generation_options.h"
#include "cli/model_input.h"

namespace quarot::cli {

namespace {

struct GenerateOptions {
  ModelInput model;
  CommonOptions common;
  RecipeOptions recipe;
  GenerationOptions generation;
  std::string prompt;
};

constexpr std::string_view reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kEndToken:
      return "end token";
    case StopReason::kStopString:
      return "stop string";
    case StopReason::kMaxTokens:
      return "max tokens";
    case StopReason::kContextFull:
      return "context full";
  }
  return "";
}

Status generate(const GenerateOptions& options) {
  TerminalProgress progress(options.common.quiet);
  QUAROT_RETURN_IF_ERROR(options.common.apply(true));
  QUAROT_ASSIGN_OR_RETURN(
      const RunnableModel runnable,
      open_runnable(options.model, options.recipe, options.common.compute_device(), progress));
  progress.clear();
  std::vector<Token> prompt = runnable.tokenizer->encode(options.prompt);
  const std::optional<Token> bos = runnable.tokenizer->bos();
  if (bos && (runnable.tokenizer->adds_bos() || prompt.empty()))
    prompt.insert(prompt.begin(), *bos);

  Session session(*runnable.backend, *runnable.tokenizer);
  const bool stream = !options.common.json;
  if (stream) std::fputs(dim(options.prompt).c_str(), stdout);
  const auto on_text = [&](std::string_view text) {
    if (!stream) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  GenerationOptions generation = options.generation;
  generation.sampling.seed = options.recipe.seed().value_or(runnable.recipe.seed);
  Result<Generation> result = session.generate(prompt, generation, on_text, progress);
  if (stream) std::fputs("\n", stdout);
  if (output_failed()) return {};  // main() says so
  if (!result.ok()) return result.error();
  if (options.common.json) {
    print_json({{"text", result->text},
                {"tokens", result->tokens},
                {"prompt_tokens", prompt.size()},
                {"reason", reason_name(result->reason)},
                {"recipe", runnable.recipe},
                {"model", options.model.path},
                {"prefill_seconds", result->prefill_seconds},
                {"decode_seconds", result->decode_seconds},
                {"peak_bytes", peak_resident_bytes()}});
  }
  return {};
}

}  // namespace

void add_generate(CLI::App& app, Command& selected) {
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt");
  auto options = std::make_shared<GenerateOptions>();
  options->model.add_to(*command);
  options->model.add_execution_to(*command);
  command->add_option("--prompt,-p", options->prompt, "the text to continue")->required();
  add_generation_options(*command, options->generation);
  options->recipe.add_to(*command, "float");
  options->common.add_to(*command);
  add_command(*command,
              "  quarot generate model.gguf --prompt \"Once upon a time\" -n 64\n"
              "  quarot generate model/ --prompt \"The capital of France is\" --recipe balanced "
              "--temperature 0.8 --top-p 0.95",
              selected, [options] {
                const Status status = generate(*options);
                return status.ok() ? kDone : report(status.error());
              });
}

}  // namespace quarot::cli
