#include "probe/site_statistics.h"

#include <algorithm>
#include <cmath>

namespace quarot {

namespace {

class StatisticsObserver final : public SiteObserver {
 public:
  explicit StatisticsObserver(int64_t layers) : statistics(static_cast<size_t>(layers)) {}

  void observe(int64_t layer, Space space, ConstMatrixRef rows) override {
    const auto site = std::ranges::find(kSites, space);
    if (site == kSites.end()) return;
    statistics[static_cast<size_t>(layer)][static_cast<size_t>(site - kSites.begin())] =
        measure(rows);
  }

  ModelStatistics statistics;

 private:
  static SiteStatistics measure(ConstMatrixRef rows) {
    SiteStatistics result;
    double squares = 0;
    double fourths = 0;
    for (int64_t r = 0; r < rows.rows(); ++r) {
      double row_squares = 0;
      double peak = 0;
      for (const float value : rows.row(r)) {
        const double square = double{value} * value;
        row_squares += square;
        fourths += square * square;
        peak = std::max(peak, std::abs(double{value}));
      }
      squares += row_squares;
      result.loudest = std::max(result.loudest, peak);
      const double rms = std::sqrt(row_squares / static_cast<double>(rows.cols()));
      if (rms > 0) result.peak_over_rms += peak / rms / static_cast<double>(rows.rows());
    }
    const auto count = static_cast<double>(rows.rows() * rows.cols());
    if (squares > 0) result.kurtosis = fourths / count / ((squares / count) * (squares / count));
    return result;
  }
};

Batch single_window(SimulatedBackend& backend, const std::vector<Token>& tokens) {
  return {tokens, {{backend.add_sequence(), 0, static_cast<int64_t>(tokens.size()), 0}}};
}

}  // namespace

Result<ModelStatistics> measure_sites(const Model& model, const std::vector<Token>& tokens,
                                      Progress& progress) {
  progress.stage("looking at activations", 1);
  SimulatedBackend backend(model, {});
  StatisticsObserver observer(model.config.layers);
  backend.set_observer(&observer);
  const Batch batch = single_window(backend, tokens);
  if (Status status = check_batch(batch, model.config); !status.ok()) return status.error();
  forward(backend, batch);
  progress.advance(1);
  return std::move(observer.statistics);
}

SiteStatistics mean_over_layers(const ModelStatistics& statistics, size_t site) {
  SiteStatistics mean;
  for (const auto& layer : statistics) {
    const auto n = static_cast<double>(statistics.size());
    mean.peak_over_rms += layer[site].peak_over_rms / n;
    mean.kurtosis += layer[site].kurtosis / n;
    mean.loudest = std::max(mean.loudest, layer[site].loudest);
  }
  return mean;
}

Result<double> relative_logit_error(const Model& changed, const Model& original,
                                    const std::vector<Token>& tokens) {
  const auto rows = static_cast<int64_t>(tokens.size());
  std::array<Matrix, 2> logits;
  const std::array models = {&changed, &original};
  for (size_t i = 0; i < models.size(); ++i) {
    SimulatedBackend backend(*models[i], {});
    const Batch batch = single_window(backend, tokens);
    if (Status status = check_batch(batch, models[i]->config); !status.ok()) return status.error();
    forward(backend, batch);
    logits[i].resize(rows, models[i]->config.vocab);
    backend.logits(0, rows, logits[i]);
  }
  double difference = 0;
  double norm = 0;
  for (int64_t i = 0; i < logits[0].size(); ++i) {
    const double a = logits[0].data()[i];
    const double b = logits[1].data()[i];
    difference += (a - b) * (a - b);
    norm += b * b;
  }
  return std::sqrt(difference / norm);
}

}  // namespace quarot
