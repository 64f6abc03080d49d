// Everything `quarot probe` measures of one model, in one struct; report_json.h gives its JSON,
// html_report.h the page that is a view of it.
#pragma once

#include <string>
#include <vector>

#include "base/progress.h"
#include "model/checkpoint.h"
#include "probe/attribution.h"
#include "probe/cache_treatments.h"
#include "probe/loudness.h"
#include "probe/operators.h"
#include "probe/site_statistics.h"
#include "probe/treatments.h"

namespace quarot {

struct PointProbe {
  SiteStatistics before, after;  // in the model's own basis and in the recipe's
};

struct LayerProbe {
  std::array<PointProbe, kPoints.size()> points;
  // μ of each weight, before and after.
  std::array<double, kRoles.size()> weight_incoherence{}, rotated_weight_incoherence{};
  LayerTreatments treatments;
  CacheErrors keys{}, values{};
};

struct AttributionRow {
  std::string basis;  // "own" or "rotated"
  std::string group;  // "all", "site", "tensor", "layer", "rotation"
  std::string part;
  bool only = true;  // this part alone is quantised (or rotated); false: all but it
  Loss loss;
};

struct Probe {
  std::string model, format, recipe, bits, text;
  ModelConfig config;
  int64_t tokens = 0;
  int64_t windows = 0;
  int64_t held_out = 0;    // tokens the treatments are measured on
  int64_t attributed = 0;  // tokens the losses are measured on
  std::vector<LayerProbe> layers;
  double logit_error = 0;  // ‖rotated − own‖ / ‖own‖, nothing quantised
  std::vector<LoudPlace> loud_places;
  Surface surface;
  Loss float_loss;
  std::vector<AttributionRow> attribution;
  std::vector<std::array<double, kPoints.size()>> heat;  // [layer][point], KL when it alone is
                                                         // quantised, in the rotated basis
  std::vector<double> depth_own, depth_rotated;  // error of the residual stream behind each layer
  std::vector<OperatorReport> operators;
  double seconds = 0;
  int64_t peak_bytes = 0;  // that the process held in memory at most

  const AttributionRow* find(std::string_view basis, std::string_view group, std::string_view part,
                             bool only) const;
};

struct ProbeOptions {
  int64_t held_out_tokens = 256;
  int64_t attribution_tokens = 128;
};

// Probes the float model with `recipe`'s change of basis; its bits are those of the attribution,
// 4 where it has none. `windows`: what calibration_windows() gave. kInvalidArgument for a model
// that carries a recipe already, or text of fewer than two tokens a window.
Result<Probe> probe_model(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                          const Recipe& recipe, const std::vector<std::vector<Token>>& windows,
                          const ProbeOptions& options, Progress& progress);

// Only statistics and exactness, of which it takes seconds: what the terminal shows without a
// report.
Result<Probe> probe_statistics(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                               const Recipe& recipe, const std::vector<std::vector<Token>>& windows,
                               Progress& progress);

}  // namespace quarot
