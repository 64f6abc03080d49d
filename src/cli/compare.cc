// quarot compare: several models that were made of one, or recipes of it, side by side.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "cli/bench_speed.h"
#include "cli/common.h"
#include "cli/compare_report.h"
#include "cli/recipe_rows.h"
#include "cli/text_input.h"
#include "recipe/artifact.h"

namespace quarot::cli {

namespace {

constexpr int kSpeedRepetitions = 3;

struct CompareOptions {
  std::vector<std::string> models;
  CommonOptions common;
  RecipeOptions recipe;
  TextInput text;
  TaskInput tasks;
  std::vector<std::string> recipes, bits;
  bool speed = false;
};

struct Entry {
  std::string path;
  OpenModel open;
  ModelConfig config;

  bool carries_recipe() const { return open.checkpoint->manifest().has_value(); }
};

Result<Entry> open_entry(const std::string& path) {
  Entry entry{path, {}, {}};
  QUAROT_ASSIGN_OR_RETURN(entry.open, open_model(path));
  QUAROT_ASSIGN_OR_RETURN(entry.config, parse_config(entry.open.checkpoint->config(), path));
  return entry;
}

double stored_bytes(const Checkpoint& checkpoint) {
  double bytes = 0;
  for (const TensorInfo& info : checkpoint.tensors().tensors())
    bytes += static_cast<double>(info.bytes);
  return bytes;
}

bool same_shape(const ModelConfig& a, const ModelConfig& b) {
  const auto shape = [](const ModelConfig& c) {
    return std::tuple(c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab);
  };
  return shape(a) == shape(b);
}

Error not_one_model(const Entry& a, const Entry& b, std::string_view what) {
  return error(ErrorCode::kInvalidArgument,
               "{} and {}: {}; expected models that were made of one and the same", a.path, b.path,
               what);
}

class Comparer {
 public:
  explicit Comparer(CompareOptions& options) : options_(options) {}

  Result<Comparison> run() {
    const auto start = std::chrono::steady_clock::now();
    QUAROT_RETURN_IF_ERROR(options_.common.apply(true));
    QUAROT_RETURN_IF_ERROR(open_entries());
    QUAROT_RETURN_IF_ERROR(plan_rows());
    QUAROT_RETURN_IF_ERROR(choose_measures());
    QUAROT_ASSIGN_OR_RETURN(Evaluator evaluator,
                            Evaluator::create(entries_.front().open, std::move(wanted_)));
    QUAROT_ASSIGN_OR_RETURN(std::vector<Measured> measured,
                            measure_rows(evaluator, runs_, options_.common.quiet));
    for (size_t i = 0; i < measured.size(); ++i) {
      ComparedRow& row = comparison_.rows[i];
      row.measured = std::move(measured[i]);
      row.cost = storage_cost(row.measured.recipe, entries_.front().config);
      if (!row.on_disk) row.bytes = written_bytes(row.measured.recipe, entries_.front().config);
      if (options_.speed) row.speeds = speeds_[i];
    }
    comparison_.measured = evaluator.options();
    comparison_.against_float = !entries_.front().carries_recipe();
    comparison_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(comparison_);
  }

 private:
  // The first without a recipe leads; where there is none, the one that an artifact was made of, if
  // that can be found.
  Status open_entries() {
    for (const std::string& path : options_.models) {
      QUAROT_ASSIGN_OR_RETURN(Entry entry, open_entry(path));
      entries_.push_back(std::move(entry));
    }
    const auto original =
        std::ranges::find_if(entries_, [](const Entry& e) { return !e.carries_recipe(); });
    if (original != entries_.end()) {
      std::rotate(entries_.begin(), original, original + 1);
      return {};
    }
    for (const Entry& entry : entries_) {
      const auto source = find_source(*entry.open.checkpoint);
      if (!source) continue;
      QUAROT_ASSIGN_OR_RETURN(Entry found, open_entry(source->string()));
      entries_.insert(entries_.begin(), std::move(found));
      comparison_.found_float = true;
      return {};
    }
    return {};
  }

  // The models as they are, then each recipe of the first at every width.
  Status plan_rows() {
    for (const Entry& entry : entries_) {
      runs_.push_back({.label = entry.path, .model = &entry.open});
      comparison_.rows.push_back(
          {.model = entry.path, .on_disk = true, .bytes = stored_bytes(*entry.open.checkpoint)});
    }
    const Entry& first = entries_.front();
    const bool alone = entries_.size() == 1 && !first.carries_recipe();
    std::vector<std::string> names = options_.recipes;
    if (names.empty() && alone) names = {"naive", "quarot", "balanced"};
    if (names.empty() && (options_.recipe.given() || !options_.bits.empty())) {
      return error(ErrorCode::kInvalidArgument,
                   "--bits and the recipe options change what --recipes names; of several models "
                   "no recipe is measured without it");
    }
    if (!names.empty() && first.carries_recipe()) {
      return error(ErrorCode::kInvalidArgument,
                   "--recipes: {} carries a recipe already; give the original model too",
                   first.path);
    }
    const std::vector<std::string> widths =
        options_.bits.empty() ? std::vector<std::string>{"W4A4KV4"} : options_.bits;
    for (const std::string& name : names) {
      if (name == "float") continue;  // always there
      for (const std::string& label : widths) {
        QUAROT_ASSIGN_OR_RETURN(Recipe recipe, options_.recipe.recipe(name));
        QUAROT_RETURN_IF_ERROR(set_bits(label, recipe));
        runs_.push_back({recipe.name + " " + label, std::move(recipe)});
        comparison_.rows.push_back({.model = first.path});
      }
    }
    return {};
  }

  Status choose_measures() {
    const OpenModel& first = entries_.front().open;
    QUAROT_ASSIGN_OR_RETURN(wanted_.windows, options_.text.windows(first));
    QUAROT_ASSIGN_OR_RETURN(wanted_.tasks, options_.tasks.open(first));
    for (size_t i = 1; i < entries_.size(); ++i)
      QUAROT_RETURN_IF_ERROR(check_same_model(entries_.front(), entries_[i]));
    wanted_.protocol = describe(options_.text.perplexity);
    wanted_.against_model = !wanted_.windows.empty();
    wanted_.calibration = options_.recipe.calibration();
    wanted_.device = options_.common.compute_device();
    comparison_.text = options_.text.path;
    comparison_.window = options_.text.perplexity.window;
    return options_.speed ? choose_speed_tests() : Status();
  }

  // What is compared has to read the same tokens and predict the same ones.
  Status check_same_model(const Entry& first, const Entry& other) const {
    if (!same_shape(first.config, other.config))
      return not_one_model(first, other, "of different shapes");
    QUAROT_ASSIGN_OR_RETURN(const auto windows, options_.text.windows(other.open));
    QUAROT_ASSIGN_OR_RETURN(const auto tasks, options_.tasks.open(other.open));
    if (windows != wanted_.windows ||
        !std::ranges::equal(tasks, wanted_.tasks, {}, &Task::items, &Task::items)) {
      return not_one_model(first, other, "their tokenizers split the text differently");
    }
    return {};
  }

  // A prompt and what is generated, briefly; of each model as soon as it is measured.
  Status choose_speed_tests() {
    if (options_.common.compute_device() != Device::kCpu) {
      return error(ErrorCode::kUnsupported,
                   "--speed measures the CPU; for a GPU: quarot bench MODEL --device cuda");
    }
    const int64_t context = entries_.front().config.max_positions;
    std::vector<SpeedTest> tests;
    for (const std::string& name : {fmt::format("pp{}", std::min<int64_t>(128, context)),
                                    fmt::format("tg{}", std::min<int64_t>(32, context))}) {
      comparison_.speed_tests.push_back(name);
      QUAROT_ASSIGN_OR_RETURN(SpeedTest test, parse_speed_test(name));
      tests.push_back(std::move(test));
    }
    wanted_.also = [this, tests](Backend& backend, Progress& progress) -> Status {
      SpeedMeter meter(backend.config());
      std::vector<double>& medians = speeds_.emplace_back();
      for (const SpeedTest& test : tests) {
        std::vector<double> speeds;
        for (int repetition = -1; repetition < kSpeedRepetitions; ++repetition) {  // −1 to warm up
          QUAROT_ASSIGN_OR_RETURN(const double speed, meter.run(backend, test, progress));
          if (repetition >= 0) speeds.push_back(speed);
        }
        medians.push_back(median(std::move(speeds)));
      }
      return {};
    };
    return {};
  }

  CompareOptions& options_;
  std::vector<Entry> entries_;
  std::vector<RecipeRow> runs_;
  std::vector<std::vector<double>> speeds_;  // one entry a row
  EvaluatorOptions wanted_;
  Comparison comparison_;
};

int run(CompareOptions& options) {
  const Status status = options.text.apply();
  if (!status.ok()) return report(status.error());
  const Result<Comparison> comparison = Comparer(options).run();
  if (!comparison.ok()) return report(comparison.error());
  if (options.common.json) {
    print_json(to_json(*comparison));
  } else {
    std::fputs(to_text(*comparison).c_str(), stdout);
  }
  return kDone;
}

}  // namespace

void add_compare(CLI::App& app, Command& selected) {
  CLI::App* command = app.add_subcommand(
      "compare", "Put models made of one, or recipes of it, side by side: size, bits, loss, speed");
  auto options = std::make_shared<CompareOptions>();
  command
      ->add_option("MODEL", options->models,
                   std::string(kModelHelp) + "; several: all made of one model")
      ->required();
  options->text.add_to(*command);
  options->tasks.add_to(*command);
  options->text.require(*command, options->tasks);
  command->add_flag("--speed", options->speed,
                    "also tokens a second: a prompt of 128 and 32 generated, medians of three");
  options->recipe.add_to(*command, "float");
  command->remove_option(command->get_option("--recipe"));
  command
      ->add_option("--recipes", options->recipes,
                   "names or FILE.json, of the model that carries none (default, where it is the "
                   "only one: naive,quarot,balanced); float is always there")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option("--bits", options->bits,
                   "each recipe at these widths: W4A4KV4 (the default), W4A8K4V3, …")
      ->delimiter(',')
      ->allow_extra_args(false);
  options->common.add_to(*command);
  add_command(*command,
              "  quarot compare model.gguf --text wiki.test.txt\n"
              "  quarot compare model.gguf model-w4 model-w4a8 --text wiki.test.txt --speed\n"
              "  quarot compare model/ --text wiki.test.txt --recipes quarot,balanced "
              "--bits W4A4KV4,W4A8KV4 --max-windows 20",
              selected, [options] { return run(*options); });
}

}  // namespace quarot::cli
