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

// 2 layers of 23808 weights in 416 rows, and two tables of [96, 48], tied where nothing unties
// them.
TEST(StorageCost, WrittenBytesByHand) {
  ModelConfig tied = config();
  tied.tied_embeddings = true;
  const double layers = 2 * (23808 * 4.0 + 416 * 32) / 8;
  Recipe recipe = value_of(recipe_by_name("quarot"));
  EXPECT_DOUBLE_EQ(written_bytes(recipe, config()), layers + 2 * 96 * 48 * 2);
  EXPECT_DOUBLE_EQ(written_bytes(recipe, tied), layers + 2 * 96 * 48 * 2);  // R1 unties them
  recipe = value_of(recipe_by_name("naive"));
  EXPECT_DOUBLE_EQ(written_bytes(recipe, tied), layers + 96 * 48 * 2);
  recipe.head_bits = 8;
  EXPECT_DOUBLE_EQ(written_bytes(recipe, tied), layers + 96 * 48 * 2 + 96 * (48 + 4));
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

// Layer 1's o_proj reads 96 of 272 channels, its down_proj has 48 · 80 weights; of two layers.
TEST(StorageCost, OfSitesWithBitsOfTheirOwnByHand) {
  Recipe recipe = value_of(recipe_by_name("quarot"));
  recipe.site_bits = {{"o_proj", {{1, 1}}, 0, 8}, {"down_proj", {{1, 1}}, 8, 0}};
  const StorageCost cost = storage_cost(recipe, config());
  EXPECT_DOUBLE_EQ(cost.weight_bits, 4 + 32.0 * 416 / 23808 + 4.0 * 48 * 80 / (2 * 23808));
  EXPECT_DOUBLE_EQ(cost.activation_bits, 4 + 32.0 * 4 / 272 + 4.0 * 96 / (2 * 272));
  recipe.site_bits.clear();
  recipe.a_budget = 4.5;
  EXPECT_DOUBLE_EQ(storage_cost(recipe, config()).activation_bits, 4.5 + 32.0 * 4 / 272);
}

// At most an eighth of 48, 96, 48, 80 channels: 6, 12, 6, 10, in 8 bits with a scale of their own;
// the rest in 4 bits with one more.
TEST(StorageCost, OfKeptChannelsByHand) {
  Recipe recipe = value_of(recipe_by_name("naive"));
  recipe.precision.kept = {.count = 12, .bits = 8};
  const StorageCost cost = storage_cost(recipe, config());
  EXPECT_EQ(cost.kept_channels, 6 + 12 + 6 + 10);
  EXPECT_DOUBLE_EQ(cost.activation_bits, (4.0 * 238 + 8.0 * 34 + 32 * 8) / 272);
  // q, k, v: 160 rows of 42 + 6; o: 48 of 84 + 12; gate, up: 160 of 42 + 6; down: 48 of 70 + 10.
  const double bits =
      320 * (4 * 42 + 8 * 6 + 64) + 48 * (4 * 84 + 8 * 12 + 64) + 48 * (4 * 70 + 8 * 10 + 64);
  EXPECT_DOUBLE_EQ(cost.weight_bits, bits / 23808);
}

// Keys by channel over a page of 32 tokens, values by token and group of 8.
TEST(StorageCost, OfPagesByHand) {
  Recipe recipe;
  recipe.precision.keys = recipe.precision.values = {.bits = 2, .clip = 1, .group = 8};
  recipe.precision.pages = {.keys_by_channel = true, .outliers = 0.01};
  EXPECT_DOUBLE_EQ(storage_cost(recipe, config()).cache_bits,
                   (2 + 64.0 / 32 + 2 + 64.0 / 8) / 2 + 0.32);
}

}  // namespace
}  // namespace quarot
