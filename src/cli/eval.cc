// quarot eval: perplexity, and the distance from the float model.
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "base/memory.h"
#include "cli/common.h"
#include "cli/text_input.h"

namespace quarot::cli {

namespace {

struct EvalOptions {
  ModelInput model;
  CommonOptions common;
  RecipeOptions recipe;
  TextInput text;
  std::string against;
};

struct Outcome {
  PerplexityResult result;
  Recipe recipe;
  std::vector<LayerReport> layers;
  std::string calibration;
  Execution execution = Execution::kSimulated;
  double seconds = 0;
};

Result<Outcome> evaluate(const EvalOptions& options, Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  QUAROT_RETURN_IF_ERROR(options.common.apply(true));
  QUAROT_ASSIGN_OR_RETURN(const Recipe recipe, options.recipe.recipe());
  QUAROT_ASSIGN_OR_RETURN(OpenModel open, open_model(options.model.path));
  QUAROT_ASSIGN_OR_RETURN(const std::vector<EvalWindow> windows,
                          options.text.windows(*open.tokenizer));

  std::unique_ptr<Backend> reference;
  if (options.against == "float") {
    QUAROT_ASSIGN_OR_RETURN(
        PreparedModel original,
        prepare_model(*open.checkpoint, *open.tokenizer, Recipe(), std::nullopt, progress));
    QUAROT_ASSIGN_OR_RETURN(
        reference, make_backend(std::move(original.model), Precision(), Execution::kSimulated,
                                options.common.compute_device()));
  }
  QUAROT_ASSIGN_OR_RETURN(
      const RunnableModel runnable,
      make_runnable(std::move(open), recipe, options.model.chosen_execution(),
                    options.common.compute_device(), options.recipe.calibration(), progress));
  Outcome outcome;
  QUAROT_ASSIGN_OR_RETURN(
      outcome.result, measure_perplexity(*runnable.backend, reference.get(), windows, progress));
  outcome.recipe = runnable.recipe;
  outcome.layers = runnable.layers;
  outcome.calibration = runnable.calibration;
  outcome.execution = runnable.execution;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

// The exponents the search chose at one site, layer by layer.
std::vector<double> alphas_at(Space site, const Outcome& outcome) {
  std::vector<double> alphas;
  for (const LayerReport& layer : outcome.layers) alphas.push_back(layer.alphas[site_index(site)]);
  return alphas;
}

nlohmann::json to_json(const EvalOptions& options, const Outcome& outcome) {
  const PerplexityResult& result = outcome.result;
  nlohmann::json json = {{"perplexity", result.perplexity},
                         {"standard_error", result.standard_error},
                         {"nll", result.nll},
                         {"tokens", result.tokens},
                         {"windows", result.nll.size()},
                         {"window", options.text.perplexity.window},
                         {"protocol", describe(options.text.perplexity)},
                         {"recipe", outcome.recipe},
                         {"bits", bits_label(outcome.recipe)},
                         {"calibration", outcome.calibration},
                         {"execution", execution_name(outcome.execution)},
                         {"model", options.model.path},
                         {"text", options.text.path},
                         {"device", options.common.device},
                         {"seconds", outcome.seconds},
                         {"peak_bytes", peak_resident_bytes()}};
  for (const Space site : kSites) {
    if (outcome.recipe.scaling.search)
      json["alphas"][std::string(space_name(site))] = alphas_at(site, outcome);
  }
  if (result.against) {
    json["against"] = {{"model", options.against},
                       {"kl", result.against->kl},
                       {"kl_standard_error", result.against->kl_standard_error},
                       {"top1_agreement", result.against->top1_agreement}};
  }
  return json;
}

void print(const EvalOptions& options, const Outcome& outcome) {
  const PerplexityResult& result = outcome.result;
  const auto line = [](std::string_view name, const std::string& value) {
    std::fputs(fmt::format("{:<14}{}\n", name, value).c_str(), stdout);
  };
  line("perplexity", bold(fmt::format("{:.4f}", result.perplexity)) +
                         fmt::format(" ± {:.4f}", result.standard_error));
  if (result.against) {
    line("KL to float", fmt::format("{:.5f} ± {:.5f} nats a token", result.against->kl,
                                    result.against->kl_standard_error));
    line("top-1 agrees", fmt::format("{:.2f} %", 100 * result.against->top1_agreement));
  }
  line("recipe", fmt::format("{} ({}), {}", outcome.recipe.name, bits_label(outcome.recipe),
                             execution_name(outcome.execution)));
  if (!outcome.calibration.empty()) line("calibration", outcome.calibration);
  for (const Space site : kSites) {
    if (!outcome.recipe.scaling.search) break;
    line("alpha", fmt::format("{:.2f} at the {}", fmt::join(alphas_at(site, outcome), " "),
                              space_name(site)));
  }
  line("protocol", describe(options.text.perplexity));
  line("tokens",
       fmt::format("{} in {} windows of {}", result.tokens, result.nll.size(), options.text.path));
  line("time, memory", fmt::format("{}, peak {}", format_seconds(outcome.seconds),
                                   format_bytes(static_cast<double>(peak_resident_bytes()))));
}

int run(EvalOptions& options) {
  const Status status = options.text.apply();
  if (!status.ok()) return report(status.error());
  const Result<Outcome> outcome = [&] {
    TerminalProgress progress(options.common.quiet);
    return evaluate(options, progress);
  }();
  if (!outcome.ok()) return report(outcome.error());
  if (options.common.json) {
    print_json(to_json(options, *outcome));
  } else {
    print(options, *outcome);
  }
  return kDone;
}

}  // namespace

void add_eval(CLI::App& app, Command& selected) {
  CLI::App* command =
      app.add_subcommand("eval", "Measure perplexity, and the distance from the float model");
  auto options = std::make_shared<EvalOptions>();
  options->model.add_to(*command);
  options->model.add_execution_to(*command);
  options->text.add_to(*command);
  command
      ->add_option("--against", options->against,
                   "also measure KL divergence and top-1 agreement with: float")
      ->check(CLI::IsMember({"float"}));
  options->recipe.add_to(*command, "float");
  options->common.add_to(*command);
  add_command(*command,
              "  quarot eval model.gguf --text wiki.test.txt\n"
              "  quarot eval model/ --text wiki.test.txt --recipe quarot --against float\n"
              "  quarot eval model/ --text wiki.test.txt --recipe balanced --a-bits 8 "
              "--max-windows 20 --json",
              selected, [options] { return run(*options); });
}

}  // namespace quarot::cli
