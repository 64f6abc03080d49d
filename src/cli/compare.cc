// quarot compare: several recipes side by side, all against the float model of the same run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>

#include "base/error.h"
#include "base/memory.h"
#include "cli/common.h"
#include "cli/table.h"
#include "cli/text_input.h"
#include "runtime/simulated_backend.h"

namespace quarot::cli {

namespace {

struct CompareOptions {
  ModelInput model;
  CommonOptions common;
  RecipeOptions recipe;
  TextInput text;
  std::vector<std::string> recipes = {"naive", "quarot", "balanced"};
  std::vector<std::string> bits = {"W4A4KV4"};
};

struct Entry {
  Recipe recipe;
  std::string calibration;
  PerplexityResult result;
};

struct Comparison {
  std::vector<Entry> entries;  // the float model first
  double seconds = 0;
};

// One recipe at every requested width, those with the same weights together: these share a model,
// which is made and held once.
Result<std::vector<std::vector<Recipe>>> variants(const CompareOptions& options,
                                                  const std::string& name) {
  std::vector<std::vector<Recipe>> groups;
  for (const std::string& label : options.bits) {
    QUAROT_ASSIGN_OR_RETURN(Recipe recipe, options.recipe.recipe(name));
    QUAROT_RETURN_IF_ERROR(set_bits(label, recipe));
    const auto same = std::ranges::find_if(groups, [&](const std::vector<Recipe>& group) {
      return group.front().weights.bits == recipe.weights.bits;
    });
    if (same == groups.end()) {
      groups.push_back({std::move(recipe)});
    } else {
      same->push_back(std::move(recipe));
    }
  }
  return groups;
}

// Measures one group after another; float comes along with the first.
class Comparer {
 public:
  Comparer(const CompareOptions& options, const OpenModel& open, Progress& progress)
      : options_(options), open_(open), progress_(progress) {}

  Result<std::vector<Entry>> run(const std::vector<std::vector<Recipe>>& groups) {
    QUAROT_ASSIGN_OR_RETURN(windows_, options_.text.windows(*open_.tokenizer));
    QUAROT_ASSIGN_OR_RETURN(const PreparedModel original, prepare(Recipe()));
    SimulatedBackend reference(original.model, Precision());
    if (groups.empty()) QUAROT_RETURN_IF_ERROR(measure(original, {}, reference));
    for (const std::vector<Recipe>& group : groups) {
      QUAROT_ASSIGN_OR_RETURN(const PreparedModel prepared, prepare(group.front()));
      QUAROT_RETURN_IF_ERROR(measure(prepared, group, reference));
    }
    return std::move(entries_);
  }

 private:
  Result<PreparedModel> prepare(const Recipe& recipe) {
    return prepare_model(*open_.checkpoint, *open_.tokenizer, recipe, options_.recipe.calibration(),
                         progress_);
  }

  Status measure(const PreparedModel& prepared, std::vector<Recipe> recipes, Backend& reference) {
    std::deque<SimulatedBackend> backends;
    std::vector<Backend*> models;
    for (const Recipe& recipe : recipes) {
      models.push_back(&backends.emplace_back(prepared.model, recipe.precision));
    }
    if (entries_.empty()) {
      recipes.insert(recipes.begin(), Recipe());
      models.insert(models.begin(), &reference);
    }
    QUAROT_ASSIGN_OR_RETURN(std::vector<PerplexityResult> results,
                            measure_perplexities(models, &reference, windows_, progress_));
    for (size_t i = 0; i < recipes.size(); ++i) {
      entries_.push_back({recipes[i], prepared.calibration, std::move(results[i])});
    }
    return {};
  }

  const CompareOptions& options_;
  const OpenModel& open_;
  Progress& progress_;
  std::vector<EvalWindow> windows_;
  std::vector<Entry> entries_;
};

Result<Comparison> compare(const CompareOptions& options, Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  QUAROT_RETURN_IF_ERROR(options.common.apply());
  std::vector<std::vector<Recipe>> groups;
  for (const std::string& name : options.recipes) {
    if (name == "float") continue;  // always there
    QUAROT_ASSIGN_OR_RETURN(std::vector<std::vector<Recipe>> more, variants(options, name));
    std::ranges::move(more, std::back_inserter(groups));
  }
  QUAROT_ASSIGN_OR_RETURN(const OpenModel open, open_model(options.model.path));
  Comparison comparison;
  QUAROT_ASSIGN_OR_RETURN(comparison.entries, Comparer(options, open, progress).run(groups));
  comparison.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return comparison;
}

nlohmann::json to_json(const CompareOptions& options, const Comparison& comparison) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Entry& entry : comparison.entries) {
    const PerplexityResult& result = entry.result;
    rows.push_back({{"recipe", entry.recipe},
                    {"bits", bits_label(entry.recipe)},
                    {"calibration", entry.calibration},
                    {"perplexity", result.perplexity},
                    {"standard_error", result.standard_error},
                    {"nll", result.nll},
                    {"kl", result.against->kl},
                    {"kl_standard_error", result.against->kl_standard_error},
                    {"top1_agreement", result.against->top1_agreement}});
  }
  const PerplexityResult& any = comparison.entries.front().result;
  return {{"model", options.model.path},
          {"text", options.text.path},
          {"protocol", describe(options.text.perplexity)},
          {"tokens", any.tokens},
          {"windows", any.nll.size()},
          {"window", options.text.perplexity.window},
          {"device", options.common.device},
          {"seconds", comparison.seconds},
          {"peak_bytes", peak_resident_bytes()},
          {"results", rows}};
}

void print(const CompareOptions& options, const Comparison& comparison) {
  Table table({"<recipe", "<bits", "perplexity", "±", "KL to float", "±", "top-1 agrees"});
  std::string calibration;
  for (const Entry& entry : comparison.entries) {
    const PerplexityResult& result = entry.result;
    table.add(
        {entry.recipe.name, bits_label(entry.recipe), fmt::format("{:.2f}", result.perplexity),
         fmt::format("{:.2f}", result.standard_error), fmt::format("{:.4f}", result.against->kl),
         fmt::format("{:.4f}", result.against->kl_standard_error),
         fmt::format("{:.1f} %", 100 * result.against->top1_agreement)});
    if (!entry.calibration.empty()) calibration = "calibrated on " + entry.calibration + "\n";
  }
  const PerplexityResult& any = comparison.entries.front().result;
  std::fputs(table.text().c_str(), stdout);
  std::fputs(
      fmt::format("{} tokens in {} windows of {}\nprotocol {}\n{}KL in nats a token; "
                  "± one standard error, from the spread of the windows\n{}, peak {}\n",
                  any.tokens, any.nll.size(), options.text.path, describe(options.text.perplexity),
                  calibration, format_seconds(comparison.seconds),
                  format_bytes(static_cast<double>(peak_resident_bytes())))
          .c_str(),
      stdout);
}

int run(CompareOptions& options) {
  const Status status = options.text.apply();
  if (!status.ok()) return report(status.error());
  const Result<Comparison> comparison = [&] {
    TerminalProgress progress(options.common.quiet);
    return compare(options, progress);
  }();
  if (!comparison.ok()) return report(comparison.error());
  if (options.common.json) {
    print_json(to_json(options, *comparison));
  } else {
    print(options, *comparison);
  }
  return kDone;
}

}  // namespace

void add_compare(CLI::App& app, Command& selected) {
  CLI::App* command =
      app.add_subcommand("compare", "Measure recipes side by side, against the float model");
  auto options = std::make_shared<CompareOptions>();
  options->model.add_to(*command);
  options->text.add_to(*command);
  options->recipe.add_to(*command, "float");
  command->remove_option(command->get_option("--recipe"));
  command->add_option("--recipes", options->recipes, "names or FILE.json; float is always there")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  command->add_option("--bits", options->bits, "each recipe at these widths: W4A4KV4, W4A8K4V3, …")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  options->common.add_to(*command);
  add_command(*command,
              "  quarot compare model.gguf --text wiki.test.txt\n"
              "  quarot compare model/ --text wiki.test.txt --recipes quarot,balanced "
              "--bits W4A4KV4,W4A8KV4 --max-windows 20",
              selected, [options] { return run(*options); });
}

}  // namespace quarot::cli
