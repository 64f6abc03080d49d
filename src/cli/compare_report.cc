#include "cli/compare_report.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/memory.h"
#include "cli/common.h"
#include "cli/table.h"
#include "cli/task_input.h"
#include "cli/terminal.h"
#include "eval/result_json.h"
#include "eval/statistics.h"

namespace quarot::cli {

namespace {

using Row = ComparedRow;

Estimate loss_difference(const Row& row, const Row& from) {
  return paired_difference(row.measured.perplexity->nll, from.measured.perplexity->nll);
}

// Models by their paths, or by the last part of it where that tells them apart.
std::vector<std::string> model_names(const std::vector<Row>& rows) {
  const auto last_part = [](const std::string& path) {
    const std::filesystem::path whole(path);
    return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  };
  std::set<std::string> paths, parts;
  for (const Row& row : rows) {
    paths.insert(row.model);
    parts.insert(last_part(row.model));
  }
  std::vector<std::string> names;
  for (const Row& row : rows)
    names.push_back(one_line(parts.size() == paths.size() ? last_part(row.model) : row.model));
  return names;
}

// Tables of which each row begins with what it is of: the model, where there are several, the
// recipe and the bits.
class Rows {
 public:
  explicit Rows(const std::vector<Row>& rows) : rows_(rows), models_(model_names(rows)) {
    several_ = std::ranges::adjacent_find(models_, std::ranges::not_equal_to()) != models_.end();
  }

  std::vector<std::string> headers(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"<recipe", "<bits"};
    if (several_) all.insert(all.begin(), "<model");
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  std::vector<std::string> cells(size_t row, const std::vector<std::string>& more) const {
    const Recipe& recipe = rows_[row].measured.recipe;
    std::vector<std::string> all = {recipe.name, bits_label(recipe)};
    if (several_) all.insert(all.begin(), models_[row]);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  const std::string& model(size_t row) const { return models_[row]; }

 private:
  const std::vector<Row>& rows_;
  std::vector<std::string> models_;
  bool several_ = false;
};

std::string accuracy_table(const Comparison& comparison, const Rows& names) {
  const bool text = !comparison.measured.windows.empty();
  std::vector<std::string> headers;
  if (text) {
    headers = {"perplexity", "±", comparison.against_float ? "KL to float" : "KL to the first", "±",
               "top-1 agrees"};
  }
  for (const Task& task : comparison.measured.tasks)
    headers.insert(headers.end(), {task.name, "±"});
  Table table(names.headers(headers));
  for (size_t i = 0; i < comparison.rows.size(); ++i) {
    const Measured& row = comparison.rows[i].measured;
    std::vector<std::string> cells;
    if (text) {
      const PerplexityResult& result = *row.perplexity;
      cells = {fmt::format("{:.2f}", result.perplexity), uncertainty(result.standard_error, 2),
               fmt::format("{:.4f}", result.against->kl),
               uncertainty(result.against->kl_standard_error, 4),
               fmt::format("{:.1f} %", 100 * result.against->top1_agreement)};
    }
    for (const TaskResult& task : row.tasks) {
      cells.push_back(fmt::format("{:.1f} %", 100 * task.acc));
      cells.push_back(uncertainty(100 * task.standard_error, 1));
    }
    table.add(names.cells(i, cells));
  }
  return table.text();
}

std::string cost_table(const Comparison& comparison, const Rows& names) {
  std::vector<std::string> headers = {"size", "W", "A", "KV"};
  for (const std::string& test : comparison.speed_tests) headers.push_back(test + " tokens/s");
  Table table(names.headers(headers));
  for (size_t i = 0; i < comparison.rows.size(); ++i) {
    const Row& row = comparison.rows[i];
    std::vector<std::string> cells = {(row.on_disk ? "" : "~") + format_bytes(row.bytes)};
    for (const double bits : {row.cost.weight_bits, row.cost.activation_bits, row.cost.cache_bits})
      cells.push_back(fmt::format("{:.2f}", bits));
    for (const double speed : row.speeds) cells.push_back(fmt::format("{:.1f}", speed));
    table.add(names.cells(i, cells));
  }
  return table.text();
}

// From the lowest loss to the highest.
std::vector<size_t> by_loss(const std::vector<Row>& rows) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, {}, [&](size_t i) { return estimate(rows[i].measured.perplexity->nll).mean; });
  return order;
}

std::string ranking_table(const Comparison& comparison, const Rows& names) {
  const std::vector<Row>& rows = comparison.rows;
  Table table(names.headers({"loss", "from the row above", "±"}));
  const std::vector<size_t> order = by_loss(rows);
  for (size_t place = 0; place < order.size(); ++place) {
    const Row& row = rows[order[place]];
    std::vector<std::string> cells = {
        fmt::format("{:.4f}", estimate(row.measured.perplexity->nll).mean)};
    if (place > 0) {
      const Estimate gap = loss_difference(row, rows[order[place - 1]]);
      cells.push_back(fmt::format("{:+.4f}", gap.mean));
      cells.push_back(uncertainty(gap.standard_error, 4));
    }
    table.add(names.cells(order[place], cells));
  }
  return table.text();
}

std::vector<std::string> notes_of(const Comparison& comparison, const Rows& names) {
  const Row& first = comparison.rows.front();
  std::vector<std::string> notes;
  if (const auto& any = first.measured.perplexity) {
    notes.push_back(fmt::format("{} tokens in {} windows of {}", any->tokens, any->nll.size(),
                                comparison.text));
    notes.push_back("protocol " + comparison.measured.protocol);
  }
  if (comparison.found_float) notes.push_back("the float model was found: " + first.model);
  if (!comparison.against_float) {
    notes.push_back(
        fmt::format("no float model was given or found: KL is from {}, the first", names.model(0)));
  }
  for (const Row& row : comparison.rows) {
    if (row.measured.calibration.empty()) continue;
    notes.push_back("calibrated on " + row.measured.calibration);
    break;
  }
  notes.push_back(fmt::format("{}± one standard error, from the spread of the windows{}",
                              comparison.measured.windows.empty() ? "" : "KL in nats a token; ",
                              comparison.measured.tasks.empty() ? "" : " or items"));
  if (!comparison.measured.windows.empty() && comparison.rows.size() > 1) {
    notes.emplace_back(
        "loss in nats a token; differences are paired by window: below two ±, they can be chance");
  }
  std::string size = "size of the tensors on disk";
  if (!std::ranges::all_of(comparison.rows, &Row::on_disk))
    size += ", ~ as quarot quantize would write them";
  notes.push_back(size);
  notes.emplace_back(
      "W, A, KV: average bits of a layer's weight, an activation, a cache element; 16: float");
  return notes;
}

nlohmann::json to_json(const Row& row, const Row& first, const Comparison& comparison) {
  nlohmann::json json = {{"model", row.model},
                         {"on_disk", row.on_disk},
                         {"recipe", row.measured.recipe},
                         {"bits", bits_label(row.measured.recipe)},
                         {"calibration", row.measured.calibration},
                         {"bytes", row.bytes},
                         {"weight_bits", row.cost.weight_bits},
                         {"activation_bits", row.cost.activation_bits},
                         {"cache_bits", row.cost.cache_bits}};
  if (row.measured.perplexity) {
    json.update(nlohmann::json(*row.measured.perplexity));
    json.update(nlohmann::json(json["against"]));
    for (const char* shared : {"against", "tokens", "windows"}) json.erase(shared);
    const Estimate difference = loss_difference(row, first);
    json["loss_difference"] = {{"mean", difference.mean},
                               {"standard_error", difference.standard_error}};
  }
  if (!comparison.measured.tasks.empty())
    json["tasks"] = tasks_json(comparison.measured.tasks, row.measured.tasks);
  for (size_t i = 0; i < row.speeds.size(); ++i)
    json["tokens_per_second"][comparison.speed_tests[i]] = row.speeds[i];
  return json;
}

// Of every two rows.
nlohmann::json differences(const std::vector<Row>& rows) {
  nlohmann::json json = nlohmann::json::array();
  for (size_t b = 0; b < rows.size(); ++b) {
    for (size_t a = b + 1; a < rows.size(); ++a) {
      const Estimate difference = loss_difference(rows[a], rows[b]);
      json.push_back({{"row", a},
                      {"from", b},
                      {"mean", difference.mean},
                      {"standard_error", difference.standard_error}});
    }
  }
  return json;
}

}  // namespace

std::string to_text(const Comparison& comparison) {
  const Rows names(comparison.rows);
  std::string text = accuracy_table(comparison, names) + "\n" + cost_table(comparison, names);
  if (!comparison.measured.windows.empty() && comparison.rows.size() > 1)
    text += "\n" + ranking_table(comparison, names);
  text += "\n";
  for (const std::string& note : notes_of(comparison, names)) text += one_line(note) + "\n";
  return text + fmt::format("{}, peak {}\n", format_seconds(comparison.seconds),
                            format_bytes(static_cast<double>(peak_resident_bytes())));
}

nlohmann::json to_json(const Comparison& comparison) {
  const std::vector<Row>& rows = comparison.rows;
  const auto& any = rows.front().measured.perplexity;
  nlohmann::json json = {{"model", rows.front().model},
                         {"against", comparison.against_float ? "float" : "first"},
                         {"device", comparison.measured.device == Device::kCpu ? "cpu" : "cuda"},
                         {"seconds", comparison.seconds},
                         {"peak_bytes", peak_resident_bytes()},
                         {"results", nlohmann::json::array()}};
  for (const Row& row : rows) json["results"].push_back(to_json(row, rows.front(), comparison));
  if (any) {
    json.update({{"text", comparison.text},
                 {"protocol", comparison.measured.protocol},
                 {"tokens", any->tokens},
                 {"windows", any->nll.size()},
                 {"window", comparison.window},
                 {"loss_differences", differences(rows)}});
  }
  return json;
}

}  // namespace quarot::cli
