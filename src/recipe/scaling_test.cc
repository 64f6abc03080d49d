// The scalings' formulas on a layer small enough for a pencil, and the search for their exponent.
#include "recipe/scaling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/quantized.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::value_of;

void expect_close(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], 1e-12 + 1e-9 * std::abs(expected[i]));
}

Matrix matrix(const std::vector<std::vector<float>>& rows) {
  Matrix m(static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size()));
  for (int64_t r = 0; r < m.rows(); ++r) std::ranges::copy(rows[r], m.row(r).begin());
  return m;
}

// Two heads of two channels on one KV head.
struct SmallLayer {
  SmallLayer() {
    config.heads = 2;
    config.kv_heads = 1;
    config.head_dim = 2;
    layer[Role::kQuery].weight = matrix({{1, -2, 0}});
    layer[Role::kKey].weight = matrix({{2, 0, 0}});
    layer[Role::kValue].weight = matrix({{-2, 0, 0}});
    layer[Role::kGate].weight = matrix({{1, 1, 1}});
    layer[Role::kUp].weight = matrix({{0, 2, 3}});
    layer[Role::kDown].weight = matrix({{3}, {4}});
    layer[Role::kOutput].weight = matrix({{1, 2, 3, 4}});
    statistics[Space::kAttentionInput] = {{}, {1, 4, 0.5}, {1, 4, 5}, {8, 8, 9}, {}};
    statistics[Space::kAttentionOutput] = {{}, {1, 2, 4, 2}, {1, 2, 4, 2}, {12, 1, 6, 8}, {}};
    statistics[Space::kFfnInput] = {{}, {2, 0, 10}, {2, 0, 10}, {2, 0, 12}, {}};
    statistics[Space::kFfnHidden] = {{}, {4}, {4}, {16}, {}};
  }
  std::vector<double> scale(Scaling scaling, double alpha, Space site) const {
    return site_scale(scaling, alpha, config, site, layer, statistics);
  }
  ModelConfig config;
  Layer layer;
  LayerStatistics statistics;
};

TEST(SiteScale, BalanceIsTheFormula) {
  const SmallLayer small;
  const auto scale = [&](Space site) { return small.scale(Scaling::kBalance, 1, site); };
  // Energies 9, 4, 0: the third channel is read by nobody and keeps scale 1.
  expect_close(scale(Space::kAttentionInput), {3, 1, 1});
  // Energies 1, 5, 10; the second channel carries nothing.
  expect_close(scale(Space::kFfnInput), {std::sqrt(0.5), 1, 1});
  // Energies 1+9, 4+16 over powers 1+4, 2+2.
  expect_close(scale(Space::kAttentionOutput), {std::sqrt(2.0), std::sqrt(5.0)});
  expect_close(scale(Space::kFfnHidden), {2.5});
}

TEST(SiteScale, SmoothQuantIsTheFormula) {
  const SmallLayer small;
  const auto scale = [&](double alpha, Space site) {
    return small.scale(Scaling::kSmoothQuant, alpha, site);
  };
  // max|W| 2, 2, 0 and max|x| 8, 8, 9.
  expect_close(scale(0.5, Space::kAttentionInput), {0.5, 0.5, 1});
  expect_close(scale(1, Space::kAttentionInput), {0.125, 0.125, 1});
  expect_close(scale(0, Space::kAttentionInput), {2, 2, 1});
  // Over both heads, max|W| 3, 4 and max|x| 12, 8.
  expect_close(scale(0.5, Space::kAttentionOutput), {0.5, std::sqrt(0.5)});
}

TEST(SiteScale, AwqIsTheFormula) {
  const SmallLayer small;
  expect_close(small.scale(Scaling::kAwq, 0.5, Space::kAttentionInput), {1, 0.5, 1});
  expect_close(small.scale(Scaling::kAwq, 1, Space::kFfnHidden), {0.25});
  expect_close(small.scale(Scaling::kAwq, 0, Space::kFfnHidden), {1});
}

TEST(ScaleSites, ScalesWhatTheRecipeSays) {
  const SmallLayer small;
  Recipe recipe;
  const auto scaled = [&] {
    return scale_sites(recipe, small.config, Transformer(small.config, {}), 0, small.layer,
                       small.statistics);
  };
  EXPECT_TRUE(scaled().scales.value.empty());
  recipe.scaling = {.method = Scaling::kBalance, .alpha = 1};
  expect_close(scaled().scales.ffn_hidden, {2.5});
  expect_close(scaled().scales.value, {std::sqrt(2.0), std::sqrt(5.0)});
  EXPECT_EQ(scaled().alphas, (SiteAlphas{1, 1, 1, 1}));
  recipe.scaling.norms_only = true;
  EXPECT_TRUE(scaled().scales.ffn_hidden.empty() && scaled().scales.value.empty());
  expect_close(scaled().scales.attention_input, {3, 1, 1});
  // With R1 fused no norm gain is left to take a scale.
  recipe.scaling.norms_only = false;
  recipe.transforms.residual = true;
  EXPECT_TRUE(scaled().scales.attention_input.empty() && scaled().scales.ffn_input.empty());
  EXPECT_FALSE(scaled().scales.ffn_hidden.empty());
}

// One loud channel, x = (16, 1), and rows (1, 3) of 2 bits.
TEST(ScaleSites, SearchFindsTheLeastOutputError) {
  SmallLayer small;
  small.config.hidden = 2;
  small.layer[Role::kQuery].weight = matrix({{1, 3}});
  small.layer[Role::kKey].weight = matrix({{1, 3}});
  small.layer[Role::kValue].weight = matrix({{1, 3}});
  small.statistics[Space::kAttentionInput] = {{}, {16, 1}, {256, 1}, {16, 1}, matrix({{16, 1}})};
  Recipe recipe;
  recipe.weights = {.bits = 2, .search_clip = false};
  recipe.scaling = {.method = Scaling::kAwq, .search = true, .norms_only = true};
  small.statistics[Space::kFfnInput].sample = matrix({{1, 1, 1}});
  const ScaledSites scaled = scale_sites(recipe, small.config, Transformer(small.config, {}), 0,
                                         small.layer, small.statistics);
  // The output is 16 + 3. With s₀ = 16^−α the scaled row is (16^α, 3), its grid the multiples of
  // the larger one. Up to 16^α = 1.5 the first rounds to 0, an error of 16; then both become the
  // larger one, and 16·3/16^α + 3 falls to 19 where 16^α = 3, at α = 0.396, beyond which 16 + 16^α
  // rises from it: of the grid, 0.4 is best.
  EXPECT_DOUBLE_EQ(scaled.alphas[site_index(Space::kAttentionInput)], 0.4);
}

// Whatever the scaling, the function stays.
TEST(ScaleSites, AreExact) {
  const Model model = testing::random_model(testing::config_json({{"model_type", "qwen2"}}), 11);
  const std::vector<Token> tokens = testing::random_tokens(40, 96, 12);
  const Matrix before = testing::logits_of(model, tokens);
  for (const Scaling scaling : {Scaling::kBalance, Scaling::kSmoothQuant, Scaling::kAwq}) {
    for (const bool search : {false, true}) {
      for (const char* base : {"float", "quarot", "balanced"}) {
        Recipe recipe = value_of(recipe_by_name(base));
        recipe.weights.bits = kFloatBits;
        recipe.scaling.method = scaling;
        recipe.scaling.search = search;
        const Model moved = testing::quantized(recipe, model, {testing::random_tokens(30, 96, 13)});
        EXPECT_LT(testing::relative_error(testing::logits_of(moved, tokens), before), 5e-6)
            << base << " " << static_cast<int>(scaling) << search;
      }
    }
  }
}

}  // namespace
}  // namespace quarot
