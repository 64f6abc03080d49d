// quarot probe: how loud each site's input is before and after a recipe's change of basis, how
// exactly that change keeps the function, and, as a report, where the error of low bits comes from.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/atomic_file.h"
#include "base/error.h"
#include "cli/common.h"
#include "cli/model_input.h"
#include "cli/table.h"
#include "probe/figures.h"
#include "probe/html_report.h"
#include "probe/report_json.h"

namespace quarot::cli {

namespace {

struct Options {
  ModelInput model;
  CommonOptions common;
  RecipeOptions recipe;
  std::string text;
  int64_t tokens = 1024;
  bool layers = false;
  bool full = false;
  std::string output, csv, figures;

  bool wants_all() const { return full || !output.empty() || !csv.empty() || !figures.empty(); }
};

Result<Probe> probe(const Options& options, Progress& progress) {
  QUAROT_RETURN_IF_ERROR(options.common.apply());
  QUAROT_ASSIGN_OR_RETURN(const Recipe recipe, options.recipe.recipe());
  QUAROT_ASSIGN_OR_RETURN(const OpenModel open, open_model(options.model.path));
  Recipe looking;  // takes as many tokens as are looked at
  looking.calibration_tokens = options.tokens;
  const std::optional<std::filesystem::path> text =
      options.text.empty() ? std::nullopt : std::optional<std::filesystem::path>(options.text);
  QUAROT_ASSIGN_OR_RETURN(auto windows, calibration_windows(looking, *open.checkpoint,
                                                            *open.tokenizer, text, progress));
  Result<Probe> found =
      options.wants_all()
          ? probe_model(*open.checkpoint, *open.tokenizer, recipe, windows, {}, progress)
          : probe_statistics(*open.checkpoint, *open.tokenizer, recipe, windows, progress);
  if (found.ok()) found->text = text ? text->string() : "text the model wrote itself";
  return found;
}

void add_row(Table& table, const std::string& name, const SiteStatistics& before,
             const SiteStatistics& after) {
  table.add({name, fmt::format("{:.2f}", before.peak_over_rms),
             fmt::format("{:.2f}", after.peak_over_rms), fmt::format("{:.1f}", before.kurtosis),
             fmt::format("{:.1f}", after.kurtosis)});
}

void print_statistics(const Probe& probe, bool by_layer) {
  Table table({"<site", "largest/RMS", "rotated", "kurtosis", "rotated"});
  for (size_t site = 0; site < kPoints.size(); ++site) {
    const std::string name(space_name(kPoints[site]));
    std::vector<const SiteStatistics*> before, after;
    for (size_t layer = 0; layer < probe.layers.size(); ++layer) {
      const PointProbe& point = probe.layers[layer].points[site];
      before.push_back(&point.before);
      after.push_back(&point.after);
      if (by_layer) add_row(table, fmt::format("{} {}", name, layer), point.before, point.after);
    }
    if (!by_layer) add_row(table, name, mean_statistics(before), mean_statistics(after));
  }
  std::fputs(table.text().c_str(), stdout);
  std::fputs(fmt::format("{}over {} tokens; a Gaussian has largest/RMS about 3 and kurtosis 3\n"
                         "relative change of the logits by the rotation: {:.1e}\n",
                         by_layer ? "" : "means over the layers, ", probe.tokens, probe.logit_error)
                 .c_str(),
             stdout);
}

// Eight heights; the largest value fills the line.
template <typename Range>
std::string sparkline(const Range& values) {
  constexpr std::string_view kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const double top = std::ranges::max(values);
  std::string line;
  for (const double value : values) {
    const double share = top > 0 ? value / top : 0;
    line += kBars[std::min<size_t>(static_cast<size_t>(share * 8), 7)];
  }
  return line;
}

// Blocks from dark to bright, in colour where the terminal has it.
std::string heat_line(const Probe& probe, size_t site, double high) {
  constexpr int kShades[] = {17, 18, 60, 66, 102, 138, 143, 179, 221, 227};
  constexpr std::string_view kPlain = " .:-=+*#%@";
  const bool colours = is_terminal(1) && std::getenv("NO_COLOR") == nullptr;
  std::string line;
  for (const auto& row : probe.heat) {
    // Four decades.
    const double share = 1 + std::log10(std::max(row[site], 1e-30) / high) / 4;
    const auto shade = static_cast<size_t>(std::clamp(share * 10, 0.0, 9.0));
    line += colours ? fmt::format("\x1b[48;5;{}m \x1b[0m", kShades[shade])
                    : std::string(1, kPlain[shade]);
  }
  return line;
}

void print_attribution(const Probe& probe) {
  Table treatments({"<relative error of the outputs", "W4A4", "W8A8"});
  for (size_t t = 0; t < kTreatments.size(); ++t) {
    treatments.add({kTreatments[t], fmt::format("{:.1f} %", 100 * mean_error(probe, 0, t)),
                    fmt::format("{:.2f} %", 100 * mean_error(probe, 1, t))});
  }
  Table parts({fmt::format("<KL to float at {}", probe.bits), "only this", "all but this"});
  for (const AttributionRow& row : probe.attribution) {
    if (row.basis != "rotated" || row.group == "layer" || !row.only) continue;
    const AttributionRow* rest = probe.find("rotated", row.group, row.part, false);
    parts.add({row.part, fmt::format("{:.4f}", row.loss.kl),
               rest != nullptr ? fmt::format("{:.4f}", rest->loss.kl) : ""});
  }
  for (const AttributionRow& row : probe.attribution) {
    if (row.group == "rotation")
      parts.add({"without " + row.part, "", fmt::format("{:.4f}", row.loss.kl)});
    if (row.basis == "own" && row.group == "all")
      parts.add({"nothing rotated", fmt::format("{:.4f}", row.loss.kl), ""});
  }
  double high = 1e-30;
  for (const auto& row : probe.heat) high = std::max(high, std::ranges::max(row));
  std::string heat = "KL by layer and site, four decades up to " + fmt::format("{:.3g}\n", high);
  for (size_t site = 0; site < kPoints.size(); ++site)
    heat += fmt::format("{:<17} {}\n", space_name(kPoints[site]), heat_line(probe, site, high));
  std::fputs(
      fmt::format("\n{}\n{}\n{}\nerror through depth\n{:<17} {}  up to {:.1f} %\n"
                  "{:<17} {}  up to {:.1f} %\n{} tokens held out, {} attributed, {}\n",
                  treatments.text(), parts.text(), heat, "as it is", sparkline(probe.depth_own),
                  100 * std::ranges::max(probe.depth_own), "rotated",
                  sparkline(probe.depth_rotated), 100 * std::ranges::max(probe.depth_rotated),
                  probe.held_out, probe.attributed, format_seconds(probe.seconds))
          .c_str(),
      stdout);
}

// Every figure's table, one below the other.
std::string csv_of(const std::vector<Figure>& all) {
  std::string text;
  for (const Figure& figure : all) {
    Table table(figure.headers);
    for (const auto& row : figure.rows) table.add(row);
    text += "# " + figure.id + "\n" + table.csv() + "\n";
  }
  return text;
}

// Some minutes are not spent on what cannot be written.
Status check_outputs(const Options& options) {
  for (const std::string& path : {options.output, options.csv}) {
    if (path.empty()) continue;
    QUAROT_ASSIGN_OR_RETURN(const AtomicFile writable, AtomicFile::create(path));
  }
  if (options.figures.empty()) return {};
  std::error_code failed;
  std::filesystem::create_directories(options.figures, failed);
  if (failed)
    return error(ErrorCode::kIo, "{}: cannot create: {}", options.figures, failed.message());
  return {};
}

Status write(const Options& options, const Probe& probe) {
  if (!options.output.empty())
    QUAROT_RETURN_IF_ERROR(write_file_atomically(options.output, html_report(probe)));
  if (options.csv.empty() && options.figures.empty()) return {};
  const std::vector<Figure> all = figures(probe);
  if (!options.csv.empty()) QUAROT_RETURN_IF_ERROR(write_file_atomically(options.csv, csv_of(all)));
  if (options.figures.empty()) return {};
  for (const Figure& figure : all) {
    QUAROT_RETURN_IF_ERROR(
        write_file_atomically(std::filesystem::path(options.figures) / (figure.id + ".svg"),
                              figure.picture.file(figure.title + ". " + figure.sentence)));
  }
  return {};
}

int run(const Options& options) {
  if (const Status writable = check_outputs(options); !writable.ok())
    return report(writable.error());
  const Result<Probe> found = [&] {
    TerminalProgress progress(options.common.quiet);
    return probe(options, progress);
  }();
  if (!found.ok()) return report(found.error());
  if (const Status written = write(options, *found); !written.ok()) return report(written.error());
  if (options.common.json) {
    print_json(to_json(*found));
    return kDone;
  }
  print_statistics(*found, options.layers);
  if (options.wants_all()) print_attribution(*found);
  return kDone;
}

}  // namespace

void add_probe(CLI::App& app, Command& selected) {
  CLI::App* command = app.add_subcommand(
      "probe", "Look at the outliers before and after a rotation, and at its exactness");
  auto options = std::make_shared<Options>();
  options->model.add_to(*command);
  command->add_option("--text", options->text,
                      "the text to look at (default: the model writes one)");
  command->add_option("--tokens", options->tokens, "how many tokens of it")
      ->check(at_least(2))
      ->capture_default_str();
  command->add_flag("--layers", options->layers, "one line a layer and site");
  command->add_flag("--full", options->full,
                    "also treatments, attribution and operators: some minutes");
  command->add_option("-o,--output", options->output, "write it all as one HTML page");
  command->add_option("--csv", options->csv, "write the tables behind the figures");
  command->add_option("--figures", options->figures, "write each figure as SVG into this folder");
  options->recipe.add_to(*command, "quarot");
  options->common.add_to(*command);
  add_command(*command,
              "  quarot probe model.gguf --text book.txt\n  quarot probe model.gguf -o "
              "report.html\n  quarot probe model/ --recipe balanced --layers",
              selected, [options] { return run(*options); });
}

}  // namespace quarot::cli
