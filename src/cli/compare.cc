// quarot compare: several recipes side by side, all against the float model of the same run.
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "base/memory.h"
#include "cli/common.h"
#include "cli/recipe_rows.h"
#include "cli/table.h"
#include "cli/text_input.h"
#include "eval/result_json.h"

namespace quarot::cli {

namespace {

struct CompareOptions {
  ModelInput model;
  CommonOptions common;
  RecipeOptions recipe;
  TextInput text;
  TaskInput tasks;
  std::vector<std::string> recipes = {"naive", "quarot", "balanced"};
  std::vector<std::string> bits = {"W4A4KV4"};
};

struct Comparison {
  EvaluatorOptions measured;
  std::vector<Measured> rows;  // the float model first
  double seconds = 0;
};

// Float, then each recipe at every requested width.
Result<std::vector<RecipeRow>> rows_of(const CompareOptions& options) {
  std::vector<RecipeRow> rows = {{"float", Recipe()}};
  for (const std::string& name : options.recipes) {
    if (name == "float") continue;  // always there
    for (const std::string& label : options.bits) {
      QUAROT_ASSIGN_OR_RETURN(Recipe recipe, options.recipe.recipe(name));
      QUAROT_RETURN_IF_ERROR(set_bits(label, recipe));
      rows.push_back({recipe.name + " " + label, std::move(recipe)});
    }
  }
  return rows;
}

Result<Comparison> compare(const CompareOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  QUAROT_RETURN_IF_ERROR(options.common.apply(true));
  QUAROT_ASSIGN_OR_RETURN(const std::vector<RecipeRow> rows, rows_of(options));
  QUAROT_ASSIGN_OR_RETURN(const OpenModel open, open_model(options.model.path));
  EvaluatorOptions wanted;
  QUAROT_ASSIGN_OR_RETURN(wanted.windows, options.text.windows(*open.tokenizer));
  QUAROT_ASSIGN_OR_RETURN(wanted.tasks, options.tasks.open(open));
  wanted.protocol = describe(options.text.perplexity);
  wanted.against_float = !wanted.windows.empty();
  wanted.calibration = options.recipe.calibration();
  wanted.device = options.common.compute_device();
  QUAROT_ASSIGN_OR_RETURN(Evaluator evaluator, Evaluator::create(open, std::move(wanted)));
  Comparison comparison;
  QUAROT_ASSIGN_OR_RETURN(comparison.rows, measure_rows(evaluator, rows, options.common.quiet));
  comparison.measured = evaluator.options();
  comparison.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return comparison;
}

nlohmann::json to_json(const Measured& row, const std::vector<Task>& tasks) {
  nlohmann::json json = {
      {"recipe", row.recipe}, {"bits", bits_label(row.recipe)}, {"calibration", row.calibration}};
  if (row.perplexity) {
    json.update(nlohmann::json(*row.perplexity));
    json.update(nlohmann::json(json["against"]));
    for (const char* shared : {"against", "tokens", "windows"}) json.erase(shared);
  }
  if (!tasks.empty()) json["tasks"] = tasks_json(tasks, row.tasks);
  return json;
}

nlohmann::json to_json(const CompareOptions& options, const Comparison& comparison) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Measured& row : comparison.rows)
    rows.push_back(to_json(row, comparison.measured.tasks));
  nlohmann::json json = {{"model", options.model.path},
                         {"device", options.common.device},
                         {"seconds", comparison.seconds},
                         {"peak_bytes", peak_resident_bytes()},
                         {"results", rows}};
  if (const auto& any = comparison.rows.front().perplexity) {
    json.update({{"text", options.text.path},
                 {"protocol", comparison.measured.protocol},
                 {"tokens", any->tokens},
                 {"windows", any->nll.size()},
                 {"window", options.text.perplexity.window}});
  }
  return json;
}

std::string table_of(const Comparison& comparison) {
  const bool text = !comparison.measured.windows.empty();
  std::vector<std::string> headers = {"<recipe", "<bits"};
  if (text) {
    headers.insert(headers.end(), {"perplexity", "±", "KL to float", "±", "top-1 agrees"});
  }
  for (const Task& task : comparison.measured.tasks) {
    headers.insert(headers.end(), {task.name, "±"});
  }
  Table table(headers);
  for (const Measured& row : comparison.rows) {
    std::vector<std::string> cells = {row.recipe.name, bits_label(row.recipe)};
    if (text) {
      const PerplexityResult& result = *row.perplexity;
      cells.insert(cells.end(), {fmt::format("{:.2f}", result.perplexity),
                                 fmt::format("{:.2f}", result.standard_error),
                                 fmt::format("{:.4f}", result.against->kl),
                                 fmt::format("{:.4f}", result.against->kl_standard_error),
                                 fmt::format("{:.1f} %", 100 * result.against->top1_agreement)});
    }
    for (const TaskResult& task : row.tasks) {
      cells.push_back(fmt::format("{:.1f} %", 100 * task.acc));
      cells.push_back(fmt::format("{:.1f}", 100 * task.standard_error));
    }
    table.add(cells);
  }
  return table.text();
}

void print(const CompareOptions& options, const Comparison& comparison) {
  std::string text = table_of(comparison);
  if (const auto& any = comparison.rows.front().perplexity) {
    text += fmt::format("{} tokens in {} windows of {}\nprotocol {}\n", any->tokens,
                        any->nll.size(), options.text.path, comparison.measured.protocol);
  }
  const std::string& calibration = comparison.rows.back().calibration;
  if (!calibration.empty()) text += "calibrated on " + calibration + "\n";
  text += fmt::format("{}± one standard error, from the spread of the windows{}\n{}, peak {}\n",
                      comparison.measured.windows.empty() ? "" : "KL in nats a token; ",
                      comparison.measured.tasks.empty() ? "" : " or items",
                      format_seconds(comparison.seconds),
                      format_bytes(static_cast<double>(peak_resident_bytes())));
  std::fputs(text.c_str(), stdout);
}

int run(CompareOptions& options) {
  const Status status = options.text.apply();
  if (!status.ok()) return report(status.error());
  const Result<Comparison> comparison = compare(options);
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
  options->tasks.add_to(*command);
  options->text.require(*command, options->tasks);
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
