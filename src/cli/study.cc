// quarot study: the paper's experiments on the user's own model, one table after another.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/memory.h"
#include "cli/common.h"
#include "cli/recipe_rows.h"
#include "cli/study_report.h"
#include "cli/text_input.h"

namespace quarot::cli {

namespace {

constexpr int64_t kQuickWindows = 8;
constexpr int64_t kQuickItems = 100;
constexpr int64_t kQuickGptqTokens = 8 * 2048;

struct StudyOptions {
  ModelInput model;
  CommonOptions common;
  TextInput text;
  TaskInput tasks;
  std::vector<std::string> tables = {"main"};
  std::string calibration, against, results, format = "terminal";
  uint64_t seed = 0;
  int seeds = 0;
  int64_t calibration_tokens = 0;
  bool quick = false;
};

// $XDG_CACHE_HOME/quarot/results, or the like in the home folder.
std::string default_results() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/quarot/results";
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr ? home : ".") + "/.cache/quarot/results";
}

std::vector<const StudyTable*> chosen_tables(const StudyOptions& options) {
  const bool all = std::ranges::count(options.tables, std::string_view("all")) > 0;
  std::vector<const StudyTable*> chosen;
  for (const StudyTable& table : study_tables()) {
    const bool possible =
        table.zero_shot ? !options.tasks.paths.empty() : !options.text.path.empty();
    if (all ? possible : std::ranges::count(options.tables, table.name) > 0) {
      chosen.push_back(&table);
    }
  }
  return chosen;
}

// --quick over what was not asked for otherwise; what it comes to, for people.
std::vector<std::string> apply_quick(StudyOptions& options) {
  if (!options.quick) return {};
  if (options.text.perplexity.max_windows == 0) {
    options.text.perplexity.max_windows = kQuickWindows;
  }
  if (options.tasks.max_items == 0) options.tasks.max_items = kQuickItems;
  return {
      fmt::format("quick: at most {} windows, {} items of a task, {} tokens for GPTQ; for "
                  "orientation only",
                  options.text.perplexity.max_windows, options.tasks.max_items, kQuickGptqTokens)};
}

class Studier {
 public:
  Studier(StudyOptions& options, const OpenModel& model) : options_(options), model_(model) {}

  Status begin() {
    const Checkpoint& checkpoint = *model_.checkpoint;
    if (checkpoint.manifest()) {
      return error(ErrorCode::kInvalidArgument,
                   "{}: this model carries a recipe already; give the original model to study "
                   "recipes of it, or see quarot compare",
                   checkpoint.path().string());
    }
    QUAROT_ASSIGN_OR_RETURN(config_, parse_config(checkpoint.config(), checkpoint.path().string()));
    QUAROT_ASSIGN_OR_RETURN(windows_, options_.text.windows(model_));
    QUAROT_ASSIGN_OR_RETURN(tasks_, options_.tasks.open(model_));
    QUAROT_ASSIGN_OR_RETURN(store_, ResultStore::open(options_.results));
    QUAROT_ASSIGN_OR_RETURN(model_hash_, model_hash(checkpoint));
    return {};
  }

  // Prints it, unless it is to be JSON.
  Status run(const StudyTable& table, const std::vector<std::string>& notes) {
    QUAROT_ASSIGN_OR_RETURN(Evaluator evaluator, Evaluator::create(model_, evaluator_for(table)));
    StudyOutcome outcome{&table, {}, {}};
    QUAROT_ASSIGN_OR_RETURN(const std::vector<RecipeRow> runs, plan(table, outcome));
    if (runs.empty()) {
      return error(ErrorCode::kUnsupported, "table {}: no row of it runs on this model; {}",
                   table.name, outcome.left_out.front());
    }
    QUAROT_ASSIGN_OR_RETURN(std::vector<Measured> measured,
                            measure_rows(evaluator, runs, options_.common.quiet));
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto row = std::ranges::find(outcome.rows, runs[i].label, &StudyOutcome::Row::label);
      row->seeds.push_back(std::move(measured[i]));
    }
    const StudyContext context{&evaluator.options(), options_.text.path, notes};
    if (options_.format == "json") {
      json_.push_back(to_json(outcome, context));
    } else {
      const StudyFormat format = options_.format == "markdown" ? StudyFormat::kMarkdown
                                 : options_.format == "csv"    ? StudyFormat::kCsv
                                                               : StudyFormat::kTerminal;
      std::fputs((to_text(outcome, context, format) + "\n").c_str(), stdout);
      std::fflush(stdout);
    }
    return {};
  }

  const nlohmann::json& json() const { return json_; }

 private:
  EvaluatorOptions evaluator_for(const StudyTable& table) const {
    EvaluatorOptions evaluator;
    evaluator.windows = windows_;
    evaluator.protocol = describe(options_.text.perplexity);
    if (table.zero_shot) evaluator.tasks = tasks_;
    evaluator.against_model = options_.against == "float" && !windows_.empty();
    if (!options_.calibration.empty()) evaluator.calibration = options_.calibration;
    evaluator.device = options_.common.compute_device();
    evaluator.store = store_;
    evaluator.program = program_identity();
    evaluator.model_hash = model_hash_;
    return evaluator;
  }

  // Seed 0 is the first one; nullopt for a further seed of a recipe in which nothing is random.
  Result<std::optional<Recipe>> recipe_at(const StudyRow& row, int seed) const {
    QUAROT_ASSIGN_OR_RETURN(const Recipe named, recipe_of(row));
    Recipe recipe = fitted(named, config_);
    if (options_.calibration_tokens > 0) {
      recipe.calibration_tokens = recipe.gptq_tokens = options_.calibration_tokens;
    }
    if (options_.quick) recipe.gptq_tokens = std::min(recipe.gptq_tokens, kQuickGptqTokens);
    if (recipe.is_random()) {
      recipe.seed = recipe.transforms.seed = options_.seed + static_cast<uint64_t>(seed);
    } else if (seed > 0) {
      return std::optional<Recipe>();
    }
    return std::optional<Recipe>(std::move(recipe));
  }

  // All rows with the first seed, then those that have another with the next: rows that share
  // weights stay neighbours. Into the outcome: the rows, still empty, and what is left out.
  Result<std::vector<RecipeRow>> plan(const StudyTable& table, StudyOutcome& outcome) const {
    const int seeds = options_.seeds > 0 ? options_.seeds : table.seeds;
    std::vector<RecipeRow> runs;
    for (int seed = 0; seed < seeds; ++seed) {
      for (const StudyRow& row : table.rows) {
        QUAROT_ASSIGN_OR_RETURN(const std::optional<Recipe> recipe, recipe_at(row, seed));
        if (!recipe) continue;
        const Status fits = check(*recipe, config_);  // not every model has every row
        if (fits.ok()) runs.push_back({row.label, *recipe});
        if (seed > 0) continue;
        if (fits.ok()) {
          outcome.rows.push_back({row.label, storage_cost(*recipe, config_), {}});
        } else {
          outcome.left_out.push_back(row.label + ": " + fits.error().message());
        }
      }
    }
    return runs;
  }

  StudyOptions& options_;
  const OpenModel& model_;
  ModelConfig config_;
  std::vector<EvalWindow> windows_;
  std::vector<Task> tasks_;
  std::optional<ResultStore> store_;
  std::string model_hash_;
  nlohmann::json json_ = nlohmann::json::array();
};

Status study(StudyOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  QUAROT_RETURN_IF_ERROR(options.text.apply());
  QUAROT_RETURN_IF_ERROR(options.common.apply(true));
  const std::vector<std::string> notes = apply_quick(options);
  QUAROT_ASSIGN_OR_RETURN(const OpenModel model, open_model(options.model.path));
  Studier studier(options, model);
  QUAROT_RETURN_IF_ERROR(studier.begin());
  for (const StudyTable* table : chosen_tables(options)) {
    QUAROT_RETURN_IF_ERROR(studier.run(*table, notes));
  }
  if (options.format != "json") return {};
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print_json({{"model", options.model.path},
              {"text", options.text.path},
              {"protocol", describe(options.text.perplexity)},
              {"quick", options.quick},
              {"device", options.common.device},
              {"seconds", seconds.count()},
              {"peak_bytes", peak_resident_bytes()},
              {"tables", studier.json()}});
  return {};
}

int run(StudyOptions& options) {
  if (options.common.json) options.format = "json";
  const Status done = study(options);
  return done.ok() ? kDone : report(done.error());
}

void require_inputs(const StudyOptions& options) {
  for (const StudyTable& table : study_tables()) {
    if (std::ranges::count(options.tables, table.name) == 0) continue;
    const bool missing = table.zero_shot ? options.tasks.paths.empty() : options.text.path.empty();
    if (!missing) continue;
    throw CLI::RequiredError(
        fmt::format("{}, for the table {},", table.zero_shot ? "--tasks" : "--text", table.name));
  }
  if (chosen_tables(options).empty()) throw CLI::RequiredError("--text or --tasks");
}

void add_tables(CLI::App& command, StudyOptions& options) {
  std::vector<std::string> names = {"all"};
  std::string list = "all";
  for (const StudyTable& table : study_tables()) {
    names.emplace_back(table.name);
    list += fmt::format(", {}", table.name);
  }
  command.add_option("--table", options.tables, "which: " + list)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(names))
      ->capture_default_str();
}

}  // namespace

void add_study(CLI::App& app, Command& selected) {
  CLI::App* command = app.add_subcommand(
      "study", "The paper's tables for this model; a killed study goes on where it stopped");
  auto options = std::make_shared<StudyOptions>();
  options->model.add_to(*command);
  add_tables(*command, *options);
  options->text.add_to(*command);
  options->tasks.add_to(*command);
  command
      ->add_option("--against", options->against,
                   "also measure KL divergence and top-1 agreement with: float")
      ->check(CLI::IsMember({"float"}));
  command->add_option("--calibration", options->calibration,
                      "text to calibrate on (default: the model writes one)");
  command
      ->add_option("--calibration-tokens", options->calibration_tokens,
                   "how many tokens of it to use (default: what each recipe says)")
      ->check(at_least(1));
  command->add_option("--seed", options->seed, "the first seed")->capture_default_str();
  command->add_option("--seeds", options->seeds, "how many (default: what the table says)")
      ->check(CLI::Range(1, 1000));
  command->add_flag("--quick", options->quick,
                    fmt::format("{} windows, {} items of a task, {} tokens for GPTQ", kQuickWindows,
                                kQuickItems, kQuickGptqTokens));
  options->results = default_results();
  command->add_option("--results", options->results, "folder where results are kept and looked up")
      ->capture_default_str();
  command->add_option("--format", options->format, "terminal, markdown, csv or json")
      ->check(CLI::IsMember({"terminal", "markdown", "csv", "json"}))
      ->capture_default_str();
  options->common.add_to(*command);
  command->parse_complete_callback([options] { require_inputs(*options); });
  add_command(
      *command,
      "  quarot study model.gguf --text wiki.test.txt --calibration wiki.train.txt --quick\n"
      "  quarot study model/ --table cache,weights --text wiki.test.txt --format markdown\n"
      "  quarot study model/ --table zero-shot --tasks piqa.jsonl winogrande.jsonl",
      selected, [options] { return run(*options); });
}

}  // namespace quarot::cli
