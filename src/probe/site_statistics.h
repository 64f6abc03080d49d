// How loud a linear's inputs are: the numbers that say whether a site has outliers.
#pragma once

#include <array>
#include <vector>

#include "base/progress.h"
#include "model/model.h"
#include "runtime/simulated_backend.h"

namespace quarot {

struct SiteStatistics {
  double peak_over_rms = 0;  // mean over tokens of max|x| / RMS(x): about 3 for a Gaussian row
  double kurtosis = 0;       // mean x⁴ / (mean x²)², over all elements: 3 for a Gaussian
  double loudest = 0;        // the largest |x| seen
};

// [layer][site, in the order of kSites].
using ModelStatistics = std::vector<std::array<SiteStatistics, kSites.size()>>;

// Runs the model over one window of tokens.
Result<ModelStatistics> measure_sites(const Model& model, const std::vector<Token>& tokens,
                                      Progress& progress);

// Mean over the layers of one site.
SiteStatistics mean_over_layers(const ModelStatistics& statistics, size_t site);

// ‖a − b‖ / ‖b‖ of the two models' logits on the tokens: how exactly a change of basis kept the
// function.
Result<double> relative_logit_error(const Model& changed, const Model& original,
                                    const std::vector<Token>& tokens);

}  // namespace quarot
