// How weights are rounded around kept channels, in bases of their own and on a lattice.
#include "recipe/weight_rounder.h"

#include <gtest/gtest.h>

#include "quant/e8_lattice.h"
#include "support/quantized.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::value_of;

Linear linear_of(Matrix weight) {
  Linear linear;
  linear.weight = std::move(weight);
  return linear;
}

Matrix row(const std::vector<float>& values) {
  Matrix m(1, static_cast<int64_t>(values.size()));
  std::ranges::copy(values, m.data());
  return m;
}

double squared_error(const Matrix& a, const Matrix& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i)
    sum += (double{a.data()[i]} - b.data()[i]) * (double{a.data()[i]} - b.data()[i]);
  return sum;
}

// Columns 1 and 3 are kept: of 2 bits the rest, (1, −2, 1.4), has the grid {−4, −2, 0, 2}, half a
// step rounding to even.
TEST(WeightRounder, LeavesKeptColumnsOut) {
  Recipe recipe;
  recipe.weights = {.bits = 2, .search_clip = false};
  recipe.precision.kept = {.count = 2};
  const ChannelOrder order = {.channels = {0, 2, 4, 1, 3}, .kept = 2};
  const WeightRounder rounder(recipe, 0, Space::kAttentionInput, order, 5);
  EXPECT_EQ(rounder.width(), 3);
  Linear linear = linear_of(row({1, 50.5F, -2, -70.3F, 1.4F}));
  testing::expect_ok(rounder.round(Role::kQuery, linear, nullptr, nullptr));
  EXPECT_FALSE(linear.quantized.has_value());
  EXPECT_TRUE(
      std::ranges::equal(linear.weight.elements(), std::vector<float>{0, 50.5F, -2, -70.3F, 2}));
  // In 8 bits of their own, the scale is 70.3/127.
  recipe.precision.kept.bits = 8;
  linear = linear_of(row({1, 50.5F, -2, -70.3F, 1.4F}));
  testing::expect_ok(rounder.round(Role::kQuery, linear, nullptr, nullptr));
  EXPECT_NEAR(linear.weight(0, 3), -70.3, 1e-5);
  EXPECT_NEAR(linear.weight(0, 1), 91 * 70.3 / 127, 1e-4);
  EXPECT_EQ(linear.weight(0, 4), 2.0F);
  // What the Hessian sees.
  Hessian seen(5);
  seen.add(row({10, 11, 12, 13, 14}));
  Hessian expected(3);
  expected.add(row({10, 12, 14}));
  EXPECT_EQ(squared_error(rounder.inputs(seen).matrix(), expected.matrix()), 0);
  CrossMoment lacking(1, 5);
  lacking.add(row({2}), row({10, 11, 12, 13, 14}));
  EXPECT_TRUE(std::ranges::equal(rounder.inputs(lacking).matrix().elements(),
                                 std::vector<float>{40, 48, 56}));
}

TEST(WeightRounder, GptqAroundKeptIsGptqOfTheRest) {
  Random random(1);
  const Matrix weight = testing::random_matrix(random, 6, 16, 1);
  const Matrix inputs = testing::random_matrix(random, 40, 16, 1);
  const ChannelOrder order = {.channels = {0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 14, 15, 5, 13},
                              .kept = 2};
  Recipe recipe;
  recipe.weights.bits = 3;
  recipe.weight_method = WeightMethod::kGptq;
  recipe.precision.kept.count = 2;
  const WeightRounder rounder(recipe, 0, Space::kFfnHidden, order, 16);
  Hessian of_all(16);
  of_all.add(inputs);
  const Hessian hessian = rounder.inputs(of_all);
  Linear linear = linear_of(Matrix(weight.view()));
  testing::expect_ok(rounder.round(Role::kDown, linear, &hessian, nullptr));
  const Matrix rest =
      value_of(gptq(recipe.weights, recipe.gptq, gather(weight, order.rest()), hessian))
          .dequantize();
  EXPECT_EQ(squared_error(gather(linear.weight, order.rest()), rest), 0);
  EXPECT_EQ(squared_error(gather(linear.weight, order.last()), gather(weight, order.last())), 0);
}

// A weight of one huge entry: its row's scale drowns the others, until both sides are mixed. And
// 8 bits come back nearly as they were: the bases cancel.
TEST(WeightRounder, IncoherenceSpreadsALoudWeight) {
  for (const Incoherence incoherence : {Incoherence::kRandom, Incoherence::kHadamard}) {
    Random random(2);
    Matrix weight = testing::random_matrix(random, 24, 32, 1);
    weight(3, 7) = 40;
    Recipe recipe;
    recipe.weights = {.bits = 4, .search_clip = false};
    const ChannelOrder none;
    const auto error = [&] {
      const WeightRounder rounder(recipe, 1, Space::kAttentionOutput, none, 32);
      Linear linear = linear_of(Matrix(weight.view()));
      testing::expect_ok(rounder.round(Role::kOutput, linear, nullptr, nullptr));
      EXPECT_EQ(linear.quantized.has_value(), recipe.incoherence == Incoherence::kNone);
      return squared_error(linear.weight, weight);
    };
    const double plain = error();
    recipe.incoherence = incoherence;
    EXPECT_LT(error(), 0.9 * plain);
    recipe.weights.bits = 8;
    EXPECT_LT(error(), 1e-4 * squared_error(weight, Matrix(24, 32, 0.0F)));
  }
}

// The Hessian's rows are turned as the weight is: GPTQ under x·xᵀ and under Vx·(Vx)ᵀ promise the
// same outputs, and with 8 bits keep them.
TEST(WeightRounder, IncoherentGptqKeepsTheOutputs) {
  Random random(3);
  const Matrix weight = testing::random_matrix(random, 24, 32, 1);
  Matrix inputs = testing::random_matrix(random, 200, 32, 1);
  for (int64_t r = 0; r < inputs.rows(); ++r) inputs(r, 4) *= 20;
  Recipe recipe;
  recipe.weights = {.bits = 3};
  recipe.incoherence = Incoherence::kHadamard;
  const ChannelOrder none;
  const auto output_error = [&] {
    const WeightRounder rounder(recipe, 1, Space::kAttentionOutput, none, 32);
    Hessian of_site(32);
    of_site.add(inputs);
    const Hessian hessian = rounder.inputs(of_site);
    Linear linear = linear_of(Matrix(weight.view()));
    testing::expect_ok(
        rounder.round(Role::kOutput, linear, recipe.uses_hessians() ? &hessian : nullptr, nullptr));
    double sum = 0;
    for (int64_t o = 0; o < 24; ++o) {
      for (int64_t t = 0; t < inputs.rows(); ++t) {
        double y = 0;
        for (int64_t c = 0; c < 32; ++c) y += (weight(o, c) - linear.weight(o, c)) * inputs(t, c);
        sum += y * y;
      }
    }
    return sum;
  };
  const double nearest = output_error();
  recipe.weight_method = WeightMethod::kGptq;
  EXPECT_LT(output_error(), 0.5 * nearest);
}

TEST(WeightRounder, LatticeWeightsAreTheCodecs) {
  Random random(4);
  const Matrix weight = testing::random_matrix(random, 8, 32, 1);
  Recipe recipe;
  recipe.weights.bits = 2;
  recipe.grid = WeightGrid::kE8;
  const ChannelOrder none;
  const WeightRounder rounder(recipe, 0, Space::kFfnInput, none, 32);
  Linear linear = linear_of(Matrix(weight.view()));
  testing::expect_ok(rounder.round(Role::kUp, linear, nullptr, nullptr));
  EXPECT_EQ(squared_error(linear.weight, round_to_e8(weight)), 0);
}

// Every rival runs, from the named recipe to logits, on a model it was not made for.
TEST(Rivals, RunOnASmallModel) {
  const Model model = testing::random_model(testing::config_json({{"hidden_size", 64},
                                                                  {"intermediate_size", 128},
                                                                  {"head_dim", 16},
                                                                  {"num_attention_heads", 4}}),
                                            5);
  const std::vector<Token> tokens = testing::random_tokens(200, 96, 6);
  const Matrix exact = testing::logits_of(model, tokens);
  for (const NamedRecipe& named : named_recipes()) {
    const Recipe recipe = fitted(value_of(recipe_by_name(named.name)), model.config);
    testing::expect_ok(check(recipe, model.config));
    const Model made = testing::quantized(recipe, model, {testing::random_tokens(120, 96, 7)});
    const double error =
        testing::relative_error(testing::logits_of(made, tokens, recipe.precision), exact);
    EXPECT_LT(error, 1.5) << named.name;
    EXPECT_EQ(error < 1e-6, recipe.is_float()) << named.name;
  }
}

}  // namespace
}  // namespace quarot
