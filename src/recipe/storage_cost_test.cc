#include "recipe/storage_cost.h"

#include <gtest/gtest.h>

#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::value_of;

// hidden 48, 6 heads of 16 on 2 KV heads, FFN 80: q [96, 48], k and v [32, 48], o [48, 96], gate
// and up [80, 48], down [48, 80]; sites 48, 96, 48, 80.
ModelConfig config() { return value_of(parse_config(testing::config_json(), "test")); }

TEST(StorageCost, FloatIsSixteenBits) {
  const StorageCost cost = storage_cost(Recipe(), config());
  EXPECT_EQ(cost.weight_bits, 16);
  EXPECT_EQ(cost.activation_bits, 16);
  EXPECT_EQ(cost.cache_bits, 16);
  EXPECT_EQ(cost.kept_channels, 0);
}

// A scale of 32 bits a row of the weights: (96 + 2·32 + 48 + 2·80 + 48) rows over 48·96·2 +
// 2·32·48 + 3·80·48 weights; one a token and site; scale and zero a head vector of 16.
TEST(StorageCost, OfWholeRowsByHand) {
  const StorageCost cost = storage_cost(value_of(recipe_by_name("quarot")), config());
  EXPECT_DOUBLE_EQ(cost.weight_bits, 4 + 32.0 * 416 / 23808);
  EXPECT_DOUBLE_EQ(cost.activation_bits, 4 + 32.0 * 4 / 272);
  EXPECT_DOUBLE_EQ(cost.cache_bits, 4 + 40.0 / 16);
}

TEST(StorageCost, OfGroupsByHand) {
  Recipe recipe = value_of(recipe_by_name("naive"));
  recipe.weights.group = recipe.precision.activations.group = 16;
  recipe.weights.symmetric = false;
  recipe.precision.keys.bits = 2;
  recipe.precision.values.bits = 16;
  const StorageCost cost = storage_cost(recipe, config());
  EXPECT_DOUBLE_EQ(cost.weight_bits, 4 + 40.0 / 16);
  EXPECT_DOUBLE_EQ(cost.activation_bits, 4 + 32.0 / 16);
  EXPECT_DOUBLE_EQ(cost.cache_bits, (2 + 40.0 / 16 + 16) / 2);
}

}  // namespace
}  // namespace quarot
