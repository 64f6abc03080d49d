#include "probe/probe.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "probe/report_json.h"
#include "recipe/quantize.h"
#include "support/synthetic.h"
#include "tensor/gemm.h"

namespace quarot {
namespace {

using testing::value_of;

Recipe four_bits() {
  Recipe recipe = value_of(recipe_by_name("quarot"));
  recipe.weights.search_clip = false;
  return recipe;
}

// What the whole model gives when all its weights are rounded in place.
Matrix quantised_logits(Model model, const Recipe& recipe, const std::vector<Token>& tokens) {
  for (Layer& layer : model.layers) {
    for (const Role role : kRoles)
      layer[role].weight = round_to_nearest(recipe.weights, layer[role].weight).dequantize();
  }
  return testing::logits_of(model, tokens, recipe.precision);
}

class AttributionTest : public ::testing::Test {
 protected:
  Model model_ = testing::random_model(testing::config_json(), 1);
  const std::vector<Token> tokens_ = testing::random_tokens(40, 96, 2);
  const Recipe recipe_ = four_bits();
  Attribution attribution_{model_, recipe_, {tokens_}};
};

TEST_F(AttributionTest, NothingQuantisedIsTheFloatModel) {
  const Loss loss = attribution_.run(Selection::none());
  EXPECT_EQ(loss.kl, 0);
  EXPECT_EQ(loss.nll, attribution_.float_loss().nll);
  EXPECT_EQ(
      testing::relative_error(attribution_.float_logits(), testing::logits_of(model_, tokens_)), 0);
}

TEST_F(AttributionTest, EverythingQuantisedIsTheQuantisedModel) {
  const Matrix logits = quantised_logits(model_, recipe_, tokens_);
  const Matrix& reference = attribution_.float_logits();
  double kl = 0;
  for (int64_t r = 0; r + 1 < logits.rows(); ++r) {
    double p_sum = 0, q_sum = 0;
    for (int64_t c = 0; c < logits.cols(); ++c) {
      p_sum += std::exp(double{reference(r, c)});
      q_sum += std::exp(double{logits(r, c)});
    }
    for (int64_t c = 0; c < logits.cols(); ++c) {
      const double p = std::exp(double{reference(r, c)}) / p_sum;
      kl += p * std::log(p / (std::exp(double{logits(r, c)}) / q_sum)) / 39;
    }
  }
  EXPECT_GT(kl, 1e-3);
  EXPECT_NEAR(attribution_.run(Selection::all()).kl, kl, 1e-5 * kl + 1e-7);
  const Attribution::Depth depth = attribution_.run_all();
  EXPECT_NEAR(depth.loss.kl, kl, 1e-5 * kl + 1e-7);
  ASSERT_EQ(depth.errors.size(), 2U);
  EXPECT_GT(depth.errors[0], 0);
}

TEST_F(AttributionTest, AKnownStreamSparesTheLayersBefore) {
  attribution_.run_all();
  for (const int64_t layer : {0, 1}) {
    EXPECT_EQ(attribution_.run_only(layer, Selection::only_layer(layer)).kl,
              attribution_.run(Selection::only_layer(layer)).kl);
    EXPECT_EQ(attribution_.run_all_but(layer).kl,
              attribution_.run(Selection::all_but_layer(layer)).kl);
    EXPECT_GT(attribution_.run_only(layer, Selection::only(layer, Space::kFfnHidden)).kl, 0);
  }
}

TEST_F(AttributionTest, LeavesTheModelAsItWas) {
  const Matrix before = testing::logits_of(model_, tokens_);
  attribution_.run(Selection::all());
  EXPECT_EQ(testing::relative_error(testing::logits_of(model_, tokens_), before), 0);
}

// A layer's keys and values are parts like its sites: each alone, both, and all layers' together.
TEST_F(AttributionTest, KeysAndValuesBelongToALayer) {
  const auto kl = [&](const Selection& selection) { return attribution_.run(selection).kl; };
  Selection keys = Selection::none();
  keys.keys = {.layer = 1, .point = {}};
  const double found = kl(Selection::only(1, Space::kKey));
  EXPECT_GT(found, 0);
  EXPECT_EQ(found, kl(keys));
  EXPECT_EQ(found, attribution_.run_only(1, Selection::only(1, Space::kKey)).kl);
  EXPECT_NE(found, kl(Selection::only(0, Space::kKey)));
  EXPECT_NE(found, kl(Selection::only(1, Space::kValue)));

  // In a model of one layer, a layer's keys are all there are.
  Model one = testing::random_model(testing::config_json({{"num_hidden_layers", 1}}), 1);
  Precision precision = recipe_.precision;
  precision.values.bits = precision.activations.bits = kFloatBits;
  Attribution attribution(one, recipe_, {tokens_});
  const Matrix quantised = testing::logits_of(one, tokens_, precision);
  EXPECT_GT(testing::relative_error(quantised, attribution.float_logits()), 1e-4);
  const double alone = attribution.run(Selection::only(0, Space::kKey)).kl;
  EXPECT_EQ(alone, attribution.run(Selection::only_site(Space::kKey)).kl);
  Selection rest = Selection::all();
  rest.keys.inside = false;
  EXPECT_EQ(attribution.run(rest).kl, attribution.run(Selection::all_but_site(Space::kKey)).kl);
}

// A large common vector costs a plain 4-bit cache most of its levels, a centred one none.
TEST(CacheTreatments, CentringTakesWhatIsCommon) {
  Random random(5);
  const CacheQuant quant{.bits = 4};
  const Matrix noise = testing::random_matrix(random, 400, 64, 1);
  const auto errors = [&](const Matrix& all) {
    const ConstMatrixRef rows = all;
    return treat_cache(quant, 32, rows.rows(0, 300), rows.rows(300, 100))[0];
  };
  const auto quiet = errors(noise);

  Matrix exact(200, 32);
  std::ranges::copy(noise.elements().subspan(300 * 64), exact.elements().begin());
  Matrix levels(exact.view());
  simulate(quant, levels);
  double mean_squares = 0;
  for (int64_t c = 0; c < 64; ++c) {
    double sum = 0;
    for (int64_t r = 300; r < 400; ++r) sum += noise(r, c) / 100.0;
    mean_squares += 100 * sum * sum;
  }
  const double varies = std::sqrt(norm_of(exact) * norm_of(exact) - mean_squares);
  EXPECT_NEAR(quiet[0], distance(levels, exact) / varies, 1e-6);

  Matrix shifted(noise.view());
  for (int64_t r = 0; r < 400; ++r) {
    for (int64_t c = 0; c < 64; ++c) shifted(r, c) += c % 3 == 0 ? 20.0F : -5.0F;
  }
  EXPECT_GT(errors(shifted)[0], 3 * quiet[0]);
  EXPECT_NEAR(errors(shifted)[1], quiet[1], 0.1 * quiet[1]);
  EXPECT_NEAR(errors(shifted)[3], quiet[3], 0.1 * quiet[3]);
}

// Windows count as if they stood alone.
TEST_F(AttributionTest, WindowsAreIndependent) {
  const std::vector<Token> other = testing::random_tokens(10, 96, 3);
  Attribution second(model_, recipe_, {other});
  Attribution both(model_, recipe_, {tokens_, other});
  const double a = attribution_.run(Selection::all()).kl;
  const double b = second.run(Selection::all()).kl;
  EXPECT_NEAR(both.run(Selection::all()).kl, (39 * a + 9 * b) / 48, 1e-9);
}

class TreatmentsTest : public ::testing::Test {
 protected:
  TreatmentsTest() {
    Random random(4);
    const ModelConfig& config = model_.config;
    for (size_t s = 0; s < kSites.size(); ++s) {
      for (SiteRows* rows : {&calibration_, &held_out_}) {
        (*rows)[s] = testing::random_matrix(random, 60, config.width(kSites[s]), 1);
        for (int64_t r = 0; r < 60; ++r) (*rows)[s](r, 7) *= 50;
      }
    }
  }

  LayerTreatments treat(const TransformSpec& rotation) {
    return value_of(try_treatments(model_.config, rotation, std::nullopt, 0, model_.layers[0],
                                   calibration_, held_out_));
  }

  Model model_ = testing::random_model(testing::config_json(), 5);
  SiteRows calibration_, held_out_;
  const TransformSpec fused_{
      .residual = true, .value = true, .heads = true, .query_key = true, .ffn = true};
};

TEST_F(TreatmentsTest, PlainRoundingIsByDefinition) {
  const LayerTreatments found = treat(fused_);
  const Matrix& weight = model_.layers[0][Role::kDown].weight;
  Matrix inputs(held_out_[3].view());
  simulate(ActivationQuant{.bits = 4, .clip = 0.9F}, inputs);
  const Matrix rounded =
      round_to_nearest(WeightQuant{.bits = 4, .search_clip = false}, weight).dequantize();
  Matrix exact(60, weight.rows());
  Matrix output(60, weight.rows());
  matmul_transposed(held_out_[3], weight, exact);
  matmul_transposed(inputs, rounded, output);
  EXPECT_EQ(found.errors[0][static_cast<size_t>(Role::kDown)][0], relative_distance(output, exact));
}

TEST_F(TreatmentsTest, RotationsAreExactAndTreatmentsHelp) {
  TransformSpec online = fused_;
  online.residual = false;
  online.norm_output = true;
  for (const TransformSpec& rotation : {fused_, online}) {
    const LayerTreatments found = treat(rotation);
    for (size_t s = 0; s < kSites.size(); ++s) {
      EXPECT_LT(found.exactness[s], 1e-6);
      EXPECT_GT(found.exactness[s], 0);
      EXPECT_NEAR(found.norm_after[s] / found.norm_before[s], 1, 1e-6);
    }
    for (const Role role : kRoles) {
      const auto& four = found.errors[0][static_cast<size_t>(role)];
      EXPECT_LT(four[2], four[0]) << spaces_of(role).name;
      EXPECT_LT(found.errors[1][static_cast<size_t>(role)][2], four[2]);
    }
  }
}

TEST(AlphaSearch, KnowsItsEnds) {
  AlphaSearch search;
  for (size_t i = 0; i < search.errors.size(); ++i)
    search.errors[i] = 1.0 - 0.01 * static_cast<double>(i);
  EXPECT_EQ(search.alpha(), 1);
  EXPECT_TRUE(search.at_end());
  search.errors[4] = 0;
  EXPECT_EQ(search.alpha(), 0.4);
  EXPECT_FALSE(search.at_end());
}

TEST(Operators, DeviationIsThatOfTheDenseProduct) {
  for (const int64_t n : {48, 80, 7}) {
    const Orthogonal op = Orthogonal::hadamard(n);
    const BasicMatrix<double> h = op.matrix();
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = i == j ? -1 : 0;
        for (int64_t k = 0; k < n; ++k) sum += h(i, k) * h(j, k);
        worst = std::max(worst, std::abs(sum));
      }
    }
    EXPECT_LT(worst, 1e-13);
    EXPECT_LT(deviation_from_orthogonal(op), 1e-13);
  }
  const std::vector<OperatorReport> all =
      measure_operators(testing::random_model(testing::config_json(), 1).config);
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].size, 48);
  EXPECT_EQ(all[3].dense_operations, 6400);
  EXPECT_LT(all[3].fast_operations, 6400);
}

}  // namespace
}  // namespace quarot
