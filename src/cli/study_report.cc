#include "cli/study_report.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cli/common.h"
#include "cli/table.h"
#include "cli/task_input.h"
#include "eval/result_json.h"
#include "eval/statistics.h"

namespace quarot::cli {

namespace {

using Row = StudyOutcome::Row;

// The mean over seeds and its standard deviation; of a single one, its own standard error.
template <typename Value>
Estimate over_seeds(const Row& row, Value value) {
  if (row.seeds.size() == 1) return value(row.seeds.front());
  std::vector<double> values;
  for (const Measured& measured : row.seeds) values.push_back(value(measured).mean);
  return {estimate(values).mean, standard_deviation(values)};
}

Estimate perplexity(const Measured& measured) {
  return {measured.perplexity->perplexity, measured.perplexity->standard_error};
}

Estimate divergence(const Measured& measured) {
  return {measured.perplexity->against->kl, measured.perplexity->against->kl_standard_error};
}

Estimate agreement(const Measured& measured) {
  return {measured.perplexity->against->top1_agreement, 0};
}

// Independent estimates averaged.
Estimate average(const std::vector<Estimate>& estimates) {
  const auto count = static_cast<double>(estimates.size());
  double sum = 0;
  double squares = 0;
  for (const Estimate& e : estimates) {
    sum += e.mean;
    squares += e.standard_error * e.standard_error;
  }
  return {sum / count, std::sqrt(squares) / count};
}

Estimate accuracy(const Measured& measured) {
  std::vector<Estimate> tasks;
  for (const TaskResult& task : measured.tasks) tasks.push_back({task.acc, task.standard_error});
  return average(tasks);
}

// Element by element, the mean over the seeds.
template <typename Values>
std::vector<double> mean_values(const Row& row, Values values) {
  std::vector<double> mean(values(row.seeds.front()).size(), 0);
  for (const Measured& measured : row.seeds) {
    const std::vector<double>& one = values(measured);
    for (size_t i = 0; i < mean.size(); ++i) {
      mean[i] += one[i] / static_cast<double>(row.seeds.size());
    }
  }
  return mean;
}

std::vector<double> losses(const Row& row) {
  return mean_values(
      row, [](const Measured& m) -> auto& { return m.perplexity->nll; });
}

Estimate loss_difference(const Row& row, const Row& from) {
  return paired_difference(losses(row), losses(from));
}

Estimate task_difference(const Row& row, const Row& from, size_t task) {
  const auto correct = [task](const Measured& m) -> auto& { return m.tasks[task].correct; };
  return paired_difference(mean_values(row, correct), mean_values(from, correct));
}

Estimate accuracy_difference(const Row& row, const Row& from) {
  std::vector<Estimate> tasks;
  for (size_t i = 0; i < row.seeds.front().tasks.size(); ++i) {
    tasks.push_back(task_difference(row, from, i));
  }
  return average(tasks);
}

std::string kept(const Row& row) {
  const KeptChannels& channels = row.seeds.front().recipe.precision.kept;
  if (channels.threshold > 0) return fmt::format("|x| > {}", channels.threshold);
  return fmt::format("{}", row.cost.kept_channels);
}

class Columns {
 public:
  explicit Columns(const EvaluatorOptions& options)
      : text_(!options.windows.empty()),
        against_(text_ && options.against_model),
        tasks_(options.tasks) {}

  std::vector<std::string> headers() const {
    std::vector<std::string> names = {"<row", "<bits", "kept", "W", "A", "KV"};
    const auto add = [&](std::initializer_list<const char*> more) {
      names.insert(names.end(), more.begin(), more.end());
    };
    if (text_) add({"perplexity", "±", "Δ loss", "±"});
    if (against_) add({"KL", "±", "top-1"});
    for (const Task& task : tasks_) names.push_back(task.name);
    if (!tasks_.empty()) add({"mean acc", "±", "Δ acc", "±"});
    return names;
  }

  std::vector<std::string> cells(const Row& row, const Row& first) const {
    std::vector<std::string> cells = {row.label, bits_label(row.seeds.front().recipe), kept(row)};
    for (const double bits :
         {row.cost.weight_bits, row.cost.activation_bits, row.cost.cache_bits}) {
      cells.push_back(fmt::format("{:.2f}", bits));
    }
    const auto add = [&](const Estimate& e, int digits, double unit = 1) {
      cells.push_back(fmt::format("{:.{}f}", unit * e.mean, digits));
      cells.push_back(uncertainty(unit * e.standard_error, digits));
    };
    if (text_) {
      add(over_seeds(row, perplexity), 3);
      add(loss_difference(row, first), 4);
    }
    if (against_) {
      add(over_seeds(row, divergence), 4);
      cells.push_back(fmt::format("{:.2f}", 100 * over_seeds(row, agreement).mean));
    }
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const Estimate acc = over_seeds(row, [i](const Measured& m) {
        return Estimate{m.tasks[i].acc, 0};
      });
      cells.push_back(fmt::format("{:.2f}", 100 * acc.mean));
    }
    if (!tasks_.empty()) {
      add(over_seeds(row, accuracy), 2, 100);
      add(accuracy_difference(row, first), 2, 100);
    }
    return cells;
  }

 private:
  bool text_, against_;
  const std::vector<Task>& tasks_;
};

// Which quantised row loses least, and whether that is more than chance.
std::string best_row(const std::vector<Row>& rows) {
  std::vector<const Row*> quantised;
  for (const Row& row : rows) {
    if (!row.seeds.front().recipe.is_float()) quantised.push_back(&row);
  }
  if (quantised.size() < 2) return "";
  const auto loss = [](const Row* row) { return estimate(losses(*row)).mean; };
  std::ranges::partial_sort(quantised, quantised.begin() + 2, {}, loss);
  const Estimate gain = loss_difference(*quantised[0], *quantised[1]);
  return fmt::format("lowest loss: {}, {:+.4f} ± {} nats a token from {}", quantised[0]->label,
                     gain.mean, uncertainty(gain.standard_error, 4), quantised[1]->label);
}

std::vector<std::string> footnotes(const StudyOutcome& outcome, const StudyContext& context) {
  const EvaluatorOptions& options = *context.evaluator;
  const std::string& first = outcome.rows.front().label;
  std::vector<std::string> notes = context.notes;
  if (!options.windows.empty()) {
    const PerplexityResult& any = *outcome.rows.front().seeds.front().perplexity;
    notes.push_back(fmt::format("{} tokens in {} windows of {}; {}", any.tokens, any.nll.size(),
                                context.text, options.protocol));
    notes.push_back(
        fmt::format("Δ loss: nats a token from {}, ± one standard error, paired by window", first));
    notes.push_back(best_row(outcome.rows));
  }
  if (!options.tasks.empty()) {
    notes.push_back(
        fmt::format("tasks: acc in %; Δ acc from {}, ± one standard error, paired by "
                    "item",
                    first));
  }
  size_t seeds = 1;
  std::string calibration;
  for (const Row& row : outcome.rows) {
    seeds = std::max(seeds, row.seeds.size());
    if (!row.seeds.front().calibration.empty()) calibration = row.seeds.front().calibration;
  }
  if (seeds > 1) {
    notes.push_back(
        fmt::format("mean of {} seeds where a row has any, ± their standard "
                    "deviation; others ± one standard error",
                    seeds));
  }
  if (!calibration.empty()) notes.push_back("calibrated on " + calibration);
  notes.emplace_back(
      "kept: channels of a layer in higher precision; W, A, KV: average bits of a weight, an "
      "activation, a cache element, scales included");
  for (const std::string& row : outcome.left_out) notes.push_back("left out: " + row);
  std::erase(notes, "");
  return notes;
}

nlohmann::json json_of(const Estimate& estimate) {
  return {{"mean", estimate.mean}, {"standard_error", estimate.standard_error}};
}

nlohmann::json json_of(const Measured& measured, const EvaluatorOptions& options) {
  nlohmann::json json = {{"recipe", measured.recipe},
                         {"seed", measured.recipe.seed},
                         {"calibration", measured.calibration}};
  if (measured.perplexity) json.update(nlohmann::json(*measured.perplexity));
  if (!options.tasks.empty()) json["tasks"] = tasks_json(options.tasks, measured.tasks);
  return json;
}

nlohmann::json json_of(const Row& row, const Row& first, const EvaluatorOptions& options) {
  nlohmann::json json = {{"label", row.label},
                         {"bits", bits_label(row.seeds.front().recipe)},
                         {"kept_channels", row.cost.kept_channels},
                         {"weight_bits", row.cost.weight_bits},
                         {"activation_bits", row.cost.activation_bits},
                         {"cache_bits", row.cost.cache_bits}};
  for (const Measured& measured : row.seeds) {
    json["results"].push_back(json_of(measured, options));
  }
  if (!options.windows.empty()) {
    json["perplexity"] = over_seeds(row, perplexity).mean;
    if (row.seeds.size() > 1) {
      json["standard_deviation"] = over_seeds(row, perplexity).standard_error;
    }
    json["loss_difference"] = json_of(loss_difference(row, first));
  }
  for (size_t i = 0; i < options.tasks.size(); ++i) {
    json["acc_difference"][options.tasks[i].name] = json_of(task_difference(row, first, i));
  }
  return json;
}

}  // namespace

std::string to_text(const StudyOutcome& outcome, const StudyContext& context, StudyFormat format) {
  const Columns columns(*context.evaluator);
  Table table(columns.headers());
  for (const Row& row : outcome.rows) table.add(columns.cells(row, outcome.rows.front()));
  if (format == StudyFormat::kCsv) return table.csv();
  const bool markdown = format == StudyFormat::kMarkdown;
  std::string text = markdown
                         ? fmt::format("### {}\n\n{}\n", outcome.table->title, table.markdown())
                         : fmt::format("{}\n{}", outcome.table->title, table.text());
  for (const std::string& note : footnotes(outcome, context)) {
    text += (markdown ? "- " : "") + one_line(note) + "\n";
  }
  return text;
}

nlohmann::json to_json(const StudyOutcome& outcome, const StudyContext& context) {
  nlohmann::json json = {{"table", outcome.table->name},
                         {"title", outcome.table->title},
                         {"left_out", outcome.left_out},
                         {"rows", nlohmann::json::array()}};
  for (const Row& row : outcome.rows) {
    json["rows"].push_back(json_of(row, outcome.rows.front(), *context.evaluator));
  }
  return json;
}

}  // namespace quarot::cli
