#include "probe/site_statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::value_of;

// The three numbers by their definitions, in two passes.
SiteStatistics by_definition(const Matrix& rows) {
  SiteStatistics s;
  double squares = 0;
  for (const float x : rows.elements()) squares += double{x} * x;
  const double mean_square = squares / static_cast<double>(rows.size());
  for (const float x : rows.elements()) {
    const double ratio = double{x} * x / mean_square;
    s.kurtosis += ratio * ratio / static_cast<double>(rows.size());
  }
  for (int64_t r = 0; r < rows.rows(); ++r) {
    double peak = 0;
    double row_squares = 0;
    for (const float x : rows.row(r)) {
      peak = std::max(peak, std::abs(double{x}));
      row_squares += double{x} * x;
    }
    s.peak_over_rms += peak / std::sqrt(row_squares / static_cast<double>(rows.cols())) /
                       static_cast<double>(rows.rows());
    s.loudest = std::max(s.loudest, peak);
  }
  return s;
}

class KeepRows final : public SiteObserver {
 public:
  void observe(int64_t layer, Space space, ConstMatrixRef seen) override {
    if (layer == 1 && space == Space::kFfnHidden) rows = Matrix(seen);
  }
  Matrix rows;
};

TEST(MeasureSites, FollowsTheDefinitions) {
  const Model model = testing::random_model(testing::config_json(), 1);
  const std::vector<Token> tokens = testing::random_tokens(50, 96, 2);
  NoProgress progress;
  const ModelStatistics statistics = value_of(measure_sites(model, tokens, progress));
  ASSERT_EQ(statistics.size(), 2U);
  SimulatedBackend backend(model, {});
  KeepRows keep;
  backend.set_observer(&keep);
  forward(backend, {tokens, {{backend.add_sequence(), 0, 50, 0}}});
  const SiteStatistics expected = by_definition(keep.rows);
  const SiteStatistics& found = statistics[1][3];
  EXPECT_NEAR(found.peak_over_rms, expected.peak_over_rms, 1e-9);
  EXPECT_NEAR(found.kurtosis, expected.kurtosis, 1e-9 * expected.kurtosis);
  EXPECT_EQ(found.loudest, expected.loudest);

  const SiteStatistics mean = mean_over_layers(statistics, 3);
  EXPECT_NEAR(mean.kurtosis, (statistics[0][3].kurtosis + statistics[1][3].kurtosis) / 2, 1e-9);
  EXPECT_EQ(mean.loudest, std::max(statistics[0][3].loudest, statistics[1][3].loudest));
}

// One channel a hundred times louder than the others is what a rotation is for.
TEST(MeasureSites, SeesAnOutlierAndItsRotation) {
  Model model = testing::random_model(testing::config_json({{"num_hidden_layers", 1}}), 3);
  model.layers[0].attention_norm[5] *= 100;
  const std::vector<Token> tokens = testing::random_tokens(100, 96, 4);
  NoProgress progress;
  const SiteStatistics loud = value_of(measure_sites(model, tokens, progress))[0][0];
  EXPECT_GT(loud.kurtosis, 30);
  EXPECT_GT(loud.peak_over_rms, 5);
  model.online.norm_output = Orthogonal::hadamard(48);
  const SiteStatistics calm = value_of(measure_sites(model, tokens, progress))[0][0];
  EXPECT_LT(calm.kurtosis, 6);
  EXPECT_LT(calm.peak_over_rms, 3);
}

TEST(RelativeLogitError, IsTheRelativeDistance) {
  const Model model = testing::random_model(testing::config_json(), 5);
  const std::vector<Token> tokens = testing::random_tokens(20, 96, 6);
  EXPECT_EQ(value_of(relative_logit_error(model, model, tokens)), 0);
  Model changed = model;
  changed.layers[1][Role::kDown].weight(3, 4) += 0.5F;
  EXPECT_NEAR(value_of(relative_logit_error(changed, model, tokens)),
              testing::relative_error(testing::logits_of(changed, tokens),
                                      testing::logits_of(model, tokens)),
              1e-9);
  EXPECT_FALSE(relative_logit_error(model, model, {96}).ok());
  NoProgress progress;
  EXPECT_FALSE(measure_sites(model, {-1}, progress).ok());
}

}  // namespace
}  // namespace quarot
