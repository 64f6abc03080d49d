// Bits within a budget: by hand where the errors are given, and found where only some layers
// matter.
#include "recipe/choose_bits.h"

#include <gtest/gtest.h>

#include "recipe/storage_cost.h"
#include "support/quantized.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::value_of;
using Chosen = std::vector<std::vector<bool>>;

// hidden 48, heads 96, KV heads 32 wide, FFN 80: 7680, 4608, 7680 and 3840 multiply-adds a token,
// 23808 a layer.
ModelConfig config() { return value_of(parse_config(testing::config_json(), "test")); }

TEST(ChooseWithin, TakesTheLargestErrorForItsMultiplyAdds) {
  const SiteErrors errors = {{7, 5, 1, 1}, {1, 1, 8, 3.8}};  // of 7680, 4608, 7680, 3840
  const double all = 2 * 23808;
  const auto budget = [&](double multiply_adds) { return 4 + 4 * multiply_adds / all; };
  const auto chosen = [&](double b) { return choose_within(b, 4, errors, config()); };
  EXPECT_EQ(chosen(4), (Chosen{{false, false}, {false, false}, {false, false}, {false, false}}));
  EXPECT_EQ(chosen(budget(4608)),
            (Chosen{{false, false}, {true, false}, {false, false}, {false, false}}));
  EXPECT_EQ(chosen(budget(4608 + 7680)),
            (Chosen{{false, false}, {true, false}, {false, true}, {false, false}}));
  // No room for that; but for what comes after it.
  EXPECT_EQ(chosen(budget(4608 + 7679)),
            (Chosen{{false, false}, {true, false}, {false, false}, {false, true}}));
  EXPECT_EQ(chosen(8), (Chosen{{true, true}, {true, true}, {true, true}, {true, true}}));
  EXPECT_EQ(choose_within(5, 2, errors, config()),  // half of all
            (Chosen{{true, false}, {true, false}, {false, true}, {false, true}}));
}

class ChooseBits : public ::testing::Test {
 protected:
  Result<Recipe> choose(const Recipe& recipe, Device device = Device::kCpu) const {
    NoProgress progress;
    const auto embed = [&](std::span<const Token> tokens) {
      return Result<Matrix>(embedding_rows(model_.embedding, tokens));
    };
    const NextLayer floats = [this, index = size_t{0}]() mutable {
      return Result<Layer>(model_.layers[index++]);
    };
    return choose_bits(recipe, model_.config, windows_, embed, floats, progress, device, {});
  }

  Model model_ = testing::random_model(testing::config_json(), 3);
  std::vector<std::vector<Token>> windows_ = {testing::random_tokens(70, 96, 1),
                                              testing::random_tokens(200, 96, 2)};
};

TEST_F(ChooseBits, LeavesARecipeWithoutABudgetAlone) {
  const Recipe recipe = value_of(recipe_by_name("balanced"));
  EXPECT_EQ(nlohmann::json(value_of(choose(recipe))), nlohmann::json(recipe));
}

// A layer that writes nothing does no harm.
TEST_F(ChooseBits, GivesBitsToWhatTheOutputFeels) {
  for (Role role : {Role::kOutput, Role::kDown})
    std::ranges::fill(model_.layers[0][role].weight.elements(), 0.0F);
  for (const char* name : {"quarot", "balanced", "balanced-gptq"}) {
    for (const bool of_weights : {false, true}) {
      Recipe recipe = value_of(recipe_by_name(name));
      (of_weights ? recipe.w_budget : recipe.a_budget) = 6;
      const Recipe chosen = value_of(choose(recipe));
      EXPECT_EQ(chosen.a_budget + chosen.w_budget, 0);
      EXPECT_EQ(bits_label(chosen), bits_label(recipe));
      const LayerBits first = bits_of(chosen.site_bits, 0);
      EXPECT_EQ(first.activations, SiteBits{}) << name;
      EXPECT_EQ(first.weights, (std::array<int, kRoles.size()>{})) << name;
      const LayerBits second = bits_of(chosen.site_bits, 1);
      const SiteBits all = {8, 8, 8, 8};
      EXPECT_EQ(second.activations, of_weights ? SiteBits{} : all) << name;
      EXPECT_EQ(second.weights[0], of_weights ? 8 : 0) << name;
      EXPECT_EQ(nlohmann::json(value_of(choose(recipe))), nlohmann::json(chosen));
    }
  }
}

TEST_F(ChooseBits, KeepsWithinBothBudgets) {
  Recipe recipe = value_of(recipe_by_name("balanced"));
  recipe.a_budget = 5;
  recipe.w_budget = 6.5;
  const Recipe chosen = value_of(choose(recipe));
  double a = 0;
  double w = 0;
  for (int64_t layer = 0; layer < 2; ++layer) {
    const LayerBits bits = bits_of(chosen.site_bits, layer);
    for (const Role role : kRoles) {
      const double weights = static_cast<double>(model_.layers[0][role].weight.size()) / 2 / 23808;
      w += weights * (bits.weights[static_cast<size_t>(role)] > 0 ? 8 : 4);
      a += weights * (bits.activations[site_index(spaces_of(role).input)] > 0 ? 8 : 4);
    }
  }
  EXPECT_LE(a, 5);
  EXPECT_GT(a, 4.6);
  EXPECT_LE(w, 6.5);
  EXPECT_GT(w, 6.1);
  // As each alone.
  const auto rules = [&](double a_budget, double w_budget) {
    Recipe alone = recipe;
    alone.a_budget = a_budget;
    alone.w_budget = w_budget;
    return value_of(choose(alone)).site_bits;
  };
  std::vector<BitsRule> apart = rules(5, 0);
  for (const BitsRule& rule : rules(0, 6.5)) apart.push_back(rule);
  EXPECT_EQ(chosen.site_bits, apart);
  EXPECT_GE(storage_cost(recipe, model_.config).weight_bits,
            storage_cost(chosen, model_.config).weight_bits);
}

TEST_F(ChooseBits, OfActivationsUnderFloatWeightsAndTheOtherWayRound) {
  Recipe recipe = value_of(recipe_by_name("quarot"));
  recipe.weights.bits = kFloatBits;
  recipe.a_budget = 6;
  EXPECT_FALSE(value_of(choose(recipe)).site_bits.empty());
  recipe = value_of(recipe_by_name("quarot"));
  recipe.precision = {};
  recipe.w_budget = 6;
  EXPECT_FALSE(value_of(choose(recipe)).site_bits.empty());
}

}  // namespace
}  // namespace quarot
