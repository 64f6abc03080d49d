// quarot probe: how loud each site's input is before and after a recipe's change of basis, and how
// exactly that change keeps the function.
#include <cstdio>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/common.h"
#include "cli/model_input.h"
#include "cli/table.h"
#include "probe/site_statistics.h"

namespace quarot::cli {

namespace {

struct ProbeOptions {
  ModelInput model;
  CommonOptions common;
  RecipeOptions recipe;
  std::string text;
  int64_t tokens = 1024;
  bool layers = false;
};

struct Finding {
  ModelStatistics before, after;
  double logit_error = 0;
  int64_t tokens = 0;
};

Result<std::vector<Token>> probe_tokens(const ProbeOptions& options, const OpenModel& open,
                                        Progress& progress) {
  Recipe recipe;
  recipe.calibration_tokens = options.tokens;
  const std::optional<std::filesystem::path> text =
      options.text.empty() ? std::nullopt : std::optional<std::filesystem::path>(options.text);
  QUAROT_ASSIGN_OR_RETURN(
      auto windows, calibration_windows(recipe, *open.checkpoint, *open.tokenizer, text, progress));
  return std::move(windows.front());
}

Result<Finding> probe(const ProbeOptions& options, Progress& progress) {
  QUAROT_RETURN_IF_ERROR(options.common.apply());
  QUAROT_ASSIGN_OR_RETURN(Recipe recipe, options.recipe.recipe());
  recipe.weights.bits = kFloatBits;  // the change of basis alone
  QUAROT_ASSIGN_OR_RETURN(const OpenModel open, open_model(options.model.path));
  QUAROT_ASSIGN_OR_RETURN(
      const PreparedModel original,
      prepare_model(*open.checkpoint, *open.tokenizer, Recipe(), std::nullopt, progress));
  QUAROT_ASSIGN_OR_RETURN(const std::vector<Token> tokens, probe_tokens(options, open, progress));
  Finding finding;
  finding.tokens = static_cast<int64_t>(tokens.size());
  QUAROT_ASSIGN_OR_RETURN(finding.before, measure_sites(original.model, tokens, progress));
  QUAROT_ASSIGN_OR_RETURN(const PreparedModel changed,
                          prepare_model(*open.checkpoint, *open.tokenizer, recipe,
                                        options.recipe.calibration(), progress));
  QUAROT_ASSIGN_OR_RETURN(finding.after, measure_sites(changed.model, tokens, progress));
  const std::vector<Token> few(tokens.begin(),
                               tokens.begin() + std::min<int64_t>(finding.tokens, 128));
  QUAROT_ASSIGN_OR_RETURN(finding.logit_error,
                          relative_logit_error(changed.model, original.model, few));
  return finding;
}

nlohmann::json to_json(const SiteStatistics& s) {
  return {{"peak_over_rms", s.peak_over_rms}, {"kurtosis", s.kurtosis}, {"loudest", s.loudest}};
}

nlohmann::json to_json(const ProbeOptions& options, const Finding& finding) {
  nlohmann::json sites = nlohmann::json::array();
  for (size_t layer = 0; layer < finding.before.size(); ++layer) {
    for (size_t site = 0; site < kSites.size(); ++site) {
      sites.push_back({{"layer", layer},
                       {"site", space_name(kSites[site])},
                       {"before", to_json(finding.before[layer][site])},
                       {"after", to_json(finding.after[layer][site])}});
    }
  }
  return {{"model", options.model.path},
          {"tokens", finding.tokens},
          {"sites", sites},
          {"logit_error", finding.logit_error}};
}

void add_row(Table& table, const std::string& name, const SiteStatistics& before,
             const SiteStatistics& after) {
  table.add({name, fmt::format("{:.2f}", before.peak_over_rms),
             fmt::format("{:.2f}", after.peak_over_rms), fmt::format("{:.1f}", before.kurtosis),
             fmt::format("{:.1f}", after.kurtosis)});
}

void print(const ProbeOptions& options, const Finding& finding) {
  Table table({"<site", "largest/RMS", "rotated", "kurtosis", "rotated"});
  for (size_t site = 0; site < kSites.size(); ++site) {
    const std::string name(space_name(kSites[site]));
    if (!options.layers) {
      add_row(table, name, mean_over_layers(finding.before, site),
              mean_over_layers(finding.after, site));
      continue;
    }
    for (size_t layer = 0; layer < finding.before.size(); ++layer) {
      add_row(table, fmt::format("{} {}", name, layer), finding.before[layer][site],
              finding.after[layer][site]);
    }
  }
  std::fputs(table.text().c_str(), stdout);
  std::fputs(fmt::format("{}over {} tokens; a Gaussian has largest/RMS about 3 and kurtosis 3\n"
                         "relative change of the logits by the rotation: {:.1e}\n",
                         options.layers ? "" : "means over the layers, ", finding.tokens,
                         finding.logit_error)
                 .c_str(),
             stdout);
}

int run(const ProbeOptions& options) {
  const Result<Finding> finding = [&] {
    TerminalProgress progress(options.common.quiet);
    return probe(options, progress);
  }();
  if (!finding.ok()) return report(finding.error());
  if (options.common.json) {
    print_json(to_json(options, *finding));
  } else {
    print(options, *finding);
  }
  return kDone;
}

}  // namespace

void add_probe(CLI::App& app, Command& selected) {
  CLI::App* command = app.add_subcommand(
      "probe", "Look at the outliers before and after a rotation, and at its exactness");
  auto options = std::make_shared<ProbeOptions>();
  options->model.add_to(*command);
  command->add_option("--text", options->text,
                      "the text to look at (default: the model writes one)");
  command->add_option("--tokens", options->tokens, "how many tokens of it")->capture_default_str();
  command->add_flag("--layers", options->layers, "one line a layer and site");
  options->recipe.add_to(*command, "quarot");
  options->common.add_to(*command);
  add_command(
      *command,
      "  quarot probe model.gguf --text book.txt\n  quarot probe model/ --recipe balanced --layers",
      selected, [options] { return run(*options); });
}

}  // namespace quarot::cli
