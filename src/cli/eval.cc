// quarot eval: perplexity, the distance from the float model, and zero-shot tasks.
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "base/memory.h"
#include "cli/common.h"
#include "cli/table.h"
#include "cli/text_input.h"
#include "eval/result_json.h"

namespace quarot::cli {

namespace {

struct EvalOptions {
  ModelInput model;
  CommonOptions common;
  RecipeOptions recipe;
  TextInput text;
  TaskInput tasks;
  std::string against;
};

struct Outcome {
  std::optional<PerplexityResult> perplexity;
  std::vector<Task> tasks;
  std::vector<TaskResult> task_results;
  Recipe recipe;
  std::vector<LayerReport> layers;
  std::string calibration;
  Execution execution = Execution::kSimulated;
  double seconds = 0;
};

Result<Outcome> evaluate(EvalOptions& options, Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  QUAROT_RETURN_IF_ERROR(options.common.apply(true));
  QUAROT_ASSIGN_OR_RETURN(const Recipe recipe, options.recipe.recipe());
  QUAROT_ASSIGN_OR_RETURN(OpenModel open, open_model(options.model.path));
  QUAROT_ASSIGN_OR_RETURN(const std::vector<EvalWindow> windows, options.text.windows(open));
  Outcome outcome;
  QUAROT_ASSIGN_OR_RETURN(outcome.tasks, options.tasks.open(open));

  std::unique_ptr<Backend> reference;
  if (options.against == "float" && !windows.empty()) {
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
  if (!windows.empty()) {
    QUAROT_ASSIGN_OR_RETURN(
        outcome.perplexity,
        measure_perplexity(*runnable.backend, reference.get(), windows, progress));
  }
  for (const Task& task : outcome.tasks) {
    QUAROT_ASSIGN_OR_RETURN(TaskResult result, measure_task(*runnable.backend, task, progress));
    outcome.task_results.push_back(std::move(result));
  }
  outcome.recipe = runnable.recipe;
  outcome.layers = runnable.layers;
  outcome.calibration = runnable.calibration;
  outcome.execution = runnable.execution;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

// What a search chose at one site, layer by layer.
template <typename Chosen>
std::vector<double> chosen_at(Space site, const Outcome& outcome, Chosen LayerReport::*chosen) {
  std::vector<double> values;
  for (const LayerReport& layer : outcome.layers)
    values.push_back((layer.*chosen)[site_index(site)]);
  return values;
}

// Of all layers.
LayerSeconds preparing(const Outcome& outcome) {
  LayerSeconds total;
  for (const LayerReport& layer : outcome.layers) {
    total.measuring += layer.seconds.measuring;
    total.passing += layer.seconds.passing;
    total.rounding += layer.seconds.rounding;
  }
  return total;
}

nlohmann::json to_json(const EvalOptions& options, const Outcome& outcome) {
  nlohmann::json json = {
      {"recipe", outcome.recipe},           {"bits", bits_label(outcome.recipe)},
      {"calibration", outcome.calibration}, {"execution", execution_name(outcome.execution)},
      {"model", options.model.path},        {"device", options.common.device},
      {"seconds", outcome.seconds},         {"peak_bytes", peak_resident_bytes()}};
  const LayerSeconds seconds = preparing(outcome);
  json["preparing_seconds"] = {{"measuring", seconds.measuring},
                               {"passing", seconds.passing},
                               {"rounding", seconds.rounding}};
  for (const Space site : kSites) {
    const std::string name(space_name(site));
    if (outcome.recipe.scaling.search)
      json["alphas"][name] = chosen_at(site, outcome, &LayerReport::alphas);
    if (outcome.recipe.searches_clips())
      json["a_clips"][name] = chosen_at(site, outcome, &LayerReport::clips);
  }
  if (outcome.perplexity) {
    json.update(nlohmann::json(*outcome.perplexity));
    json["window"] = options.text.perplexity.window;
    json["protocol"] = describe(options.text.perplexity);
    json["text"] = options.text.path;
    if (outcome.perplexity->against) json["against"]["model"] = options.against;
  }
  if (!outcome.tasks.empty()) json["tasks"] = tasks_json(outcome.tasks, outcome.task_results);
  return json;
}

void line(std::string_view name, const std::string& value) {
  std::fputs(fmt::format("{:<14}{}\n", name, value).c_str(), stdout);
}

void print(const PerplexityResult& result) {
  line("perplexity", bold(fmt::format("{:.4f}", result.perplexity)) +
                         fmt::format(" ± {}", uncertainty(result.standard_error, 4)));
  if (!result.against) return;
  line("KL to float", fmt::format("{:.5f} ± {} nats a token", result.against->kl,
                                  uncertainty(result.against->kl_standard_error, 5)));
  line("top-1 agrees", fmt::format("{:.2f} %", 100 * result.against->top1_agreement));
}

void print(const EvalOptions& options, const Outcome& outcome) {
  if (outcome.perplexity) print(*outcome.perplexity);
  for (size_t i = 0; i < outcome.tasks.size(); ++i) {
    line(one_line(outcome.tasks[i].name) + "  ",
         fmt::format("{}, {} items", describe(outcome.task_results[i]),
                     outcome.tasks[i].items.size()));
  }
  line("recipe", fmt::format("{} ({}), {}", one_line(outcome.recipe.name),
                             bits_label(outcome.recipe), execution_name(outcome.execution)));
  if (!outcome.calibration.empty()) line("calibration", one_line(outcome.calibration));
  const auto print_chosen = [&](std::string_view name, auto chosen) {
    for (const Space site : kSites) {
      line(name, fmt::format("{:.2f} at the {}", fmt::join(chosen_at(site, outcome, chosen), " "),
                             space_name(site)));
    }
  };
  if (outcome.recipe.scaling.search) print_chosen("alpha", &LayerReport::alphas);
  if (outcome.recipe.searches_clips()) print_chosen("clip", &LayerReport::clips);
  if (outcome.perplexity) {
    line("protocol", describe(options.text.perplexity));
    line("tokens", fmt::format("{} in {} windows of {}", outcome.perplexity->tokens,
                               outcome.perplexity->nll.size(), one_line(options.text.path)));
  }
  if (!outcome.calibration.empty()) {
    const LayerSeconds seconds = preparing(outcome);
    line("preparing", fmt::format("{:.1f} s measuring, {:.1f} s passing tokens, {:.1f} s rounding",
                                  seconds.measuring, seconds.passing, seconds.rounding));
  }
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
  CLI::App* command = app.add_subcommand(
      "eval", "Measure perplexity, the distance from the float model, zero-shot tasks");
  auto options = std::make_shared<EvalOptions>();
  options->model.add_to(*command);
  options->model.add_execution_to(*command);
  options->text.add_to(*command);
  options->tasks.add_to(*command);
  options->text.require(*command, options->tasks);
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
              "--max-windows 20 --json\n"
              "  quarot eval model/ --tasks piqa.jsonl lambada_openai.jsonl --max-items 200",
              selected, [options] { return run(*options); });
}

}  // namespace quarot::cli
