#include "recipe/recipe.h"

#include <gtest/gtest.h>

#include "support/synthetic.h"

namespace quarot {
namespace {

using nlohmann::json;
using testing::value_of;

Recipe parse(const json& text) { return value_of(parse_recipe(text, "test")); }

void expect_refused(const json& text, ErrorCode code, const std::string& message) {
  const auto recipe = parse_recipe(text, "test");
  ASSERT_FALSE(recipe.ok()) << text;
  EXPECT_EQ(recipe.error().code(), code) << recipe.error().message();
  EXPECT_NE(recipe.error().message().find(message), std::string::npos) << recipe.error().message();
  EXPECT_EQ(recipe.error().message().find('\n'), std::string::npos);
}

TEST(Recipe, NamedOnesAreWhatTheySay) {
  const auto bits = [](const Recipe& r) {
    return std::vector{r.weights.bits, r.precision.activations.bits, r.precision.keys.bits,
                       r.precision.values.bits};
  };
  const Recipe plain = value_of(recipe_by_name("float"));
  EXPECT_TRUE(plain.is_float() && !plain.transforms.any() && !plain.calibrates());
  const Recipe naive = value_of(recipe_by_name("naive"));
  EXPECT_EQ(bits(naive), (std::vector{4, 4, 4, 4}));
  EXPECT_FALSE(naive.transforms.any() || naive.calibrates());
  EXPECT_EQ(naive.precision.activations.clip, 0.9F);
  EXPECT_EQ(naive.precision.keys.clip, 0.95F);
  const Recipe quarot = value_of(recipe_by_name("quarot"));
  EXPECT_TRUE(quarot.transforms.residual && !quarot.transforms.norm_output);
  EXPECT_TRUE(quarot.transforms.value && quarot.transforms.heads && quarot.transforms.query_key &&
              quarot.transforms.ffn);
  EXPECT_FALSE(quarot.calibrates());
  const Recipe balanced = value_of(recipe_by_name("balanced"));
  EXPECT_TRUE(!balanced.transforms.residual && balanced.transforms.norm_output);
  EXPECT_TRUE(balanced.calibrates());
  EXPECT_EQ(balanced.center, Centering::kKeysAndValues);
  EXPECT_EQ(balanced.scaling, (ScalingSpec{.method = Scaling::kBalance, .alpha = 0.5}));
  EXPECT_EQ(balanced.precision.activations.clip, 0.85F);
  const Recipe aimed = value_of(recipe_by_name("balanced-gptq"));
  EXPECT_EQ(bits(aimed), (std::vector{4, 4, 4, 4}));
  EXPECT_TRUE(aimed.uses_gptq() && aimed.gptq_quantized_inputs && aimed.gptq_residual == 0.5);
  EXPECT_TRUE(aimed.searches_clips());
  EXPECT_EQ(aimed.transforms, balanced.transforms);
  EXPECT_EQ(aimed.scaling, balanced.scaling);
  for (const NamedRecipe& named : named_recipes()) EXPECT_TRUE(recipe_by_name(named.name).ok());
}

TEST(Recipe, UnknownNameListsThoseThereAre) {
  const auto recipe = recipe_by_name("quarrot");
  ASSERT_FALSE(recipe.ok());
  EXPECT_EQ(recipe.error().code(), ErrorCode::kNotFound);
  EXPECT_NE(recipe.error().message().find("float, naive, quarot, balanced"), std::string::npos);
}

// A recipe in which every field differs from every named recipe's.
Recipe unusual() {
  Recipe r;
  r.name = "mine";
  r.transforms = {.residual = false,
                  .norm_output = true,
                  .value = true,
                  .heads = false,
                  .query_key = true,
                  .ffn = false,
                  .kind = BasisKind::kRandom,
                  .seed = UINT64_MAX};
  r.scaling = {.method = Scaling::kAwq, .alpha = 0.3, .search = true, .norms_only = true};
  r.center = Centering::kKeys;
  r.weights = {.bits = 3, .group = 64, .symmetric = false, .search_clip = false, .clip = 0.7F};
  r.weight_method = WeightMethod::kGptq;
  r.grid = WeightGrid::kE8;
  r.incoherence = Incoherence::kHadamard;
  r.clip_by_outputs = true;
  r.gptq.damp = 0.05F;
  r.gptq.act_order = true;
  r.gptq_quantized_inputs = true;
  r.gptq_residual = 0.6;
  r.gptq_tokens = 99;
  r.precision.activations = {
      .bits = 7, .group = 32, .clip = 0.8F, .symmetric = false, .search_clip = true};
  r.precision.keys = {.bits = 5, .clip = 0.91F, .group = 16};
  r.precision.values = {.bits = 6, .clip = 0.92F, .group = 16};
  r.precision.pages = {
      .keys_by_channel = true, .keys_before_rope = true, .recent = 96, .outliers = 0.25};
  r.precision.half_online = true;
  r.precision.kept = {.count = 12, .threshold = 3.5, .bits = 7, .sorted = true};
  r.site_bits = {{"o_proj", {}, 0, 8}, {"v_proj", {{0, 3}, {29, 29}}, 5, 0}};
  r.a_budget = 4.25;
  r.w_budget = 5.5;
  r.fit_groups = true;
  r.embedding_bits = 8;
  r.head_bits = 4;
  r.calibration_tokens = 77;
  r.seed = UINT64_MAX - 1;
  return r;
}

TEST(Recipe, JsonKeepsEveryField) {
  std::vector<Recipe> recipes = {unusual()};
  for (const NamedRecipe& named : named_recipes())
    recipes.push_back(value_of(recipe_by_name(named.name)));
  for (const Recipe& recipe : recipes) {
    const Recipe read = parse(json::parse(json(recipe).dump()));
    EXPECT_EQ(read.name, recipe.name);
    EXPECT_EQ(read.transforms, recipe.transforms);
    EXPECT_EQ(read.scaling, recipe.scaling);
    EXPECT_EQ(read.center, recipe.center);
    EXPECT_EQ(read.weights, recipe.weights);
    EXPECT_EQ(read.weight_method, recipe.weight_method);
    EXPECT_EQ(read.grid, recipe.grid);
    EXPECT_EQ(read.incoherence, recipe.incoherence);
    EXPECT_EQ(read.clip_by_outputs, recipe.clip_by_outputs);
    EXPECT_EQ(read.gptq.damp, recipe.gptq.damp);
    EXPECT_EQ(read.gptq.act_order, recipe.gptq.act_order);
    EXPECT_EQ(read.gptq_quantized_inputs, recipe.gptq_quantized_inputs);
    EXPECT_EQ(read.gptq_residual, recipe.gptq_residual);
    EXPECT_EQ(read.gptq_tokens, recipe.gptq_tokens);
    EXPECT_EQ(read.precision, recipe.precision);
    EXPECT_EQ(read.site_bits, recipe.site_bits);
    EXPECT_EQ(read.a_budget, recipe.a_budget);
    EXPECT_EQ(read.w_budget, recipe.w_budget);
    EXPECT_EQ(read.fit_groups, recipe.fit_groups);
    EXPECT_EQ(read.embedding_bits, recipe.embedding_bits);
    EXPECT_EQ(read.head_bits, recipe.head_bits);
    EXPECT_EQ(read.calibration_tokens, recipe.calibration_tokens);
    EXPECT_EQ(read.seed, recipe.seed);
  }
}

TEST(Recipe, JsonStandsOverItsBase) {
  const Recipe named = parse({{"name", "quarot"}, {"a_bits", 8}});
  EXPECT_EQ(bits_label(named), "W4A8KV4");
  EXPECT_TRUE(named.transforms.residual);
  const Recipe based = parse(
      {{"name", "mine"}, {"base", "balanced"}, {"transforms", {{"heads", false}, {"seed", 3}}}});
  EXPECT_EQ(based.name, "mine");
  EXPECT_EQ(based.scaling.method, Scaling::kBalance);
  EXPECT_TRUE(based.transforms.norm_output && based.transforms.ffn);  // as the base has them
  EXPECT_FALSE(based.transforms.heads);
  EXPECT_EQ(based.transforms.seed, 3U);
  EXPECT_EQ(parse({{"base", "balanced"}, {"a_bits", 8}}).name, "balanced");
  const Recipe unknown_name = parse({{"name", "mine"}, {"k_bits", 4}});
  EXPECT_EQ(bits_label(unknown_name), "W16A16K4V16");
}

TEST(Recipe, JsonThatIsWrongIsRefused) {
  expect_refused(json::array(), ErrorCode::kInvalidArgument, "JSON object");
  expect_refused({{"w_bit", 4}}, ErrorCode::kInvalidArgument, "\"w_bit\" is no field");
  expect_refused({{"w_bits", "4"}}, ErrorCode::kCorrupt, "expected an integer");
  expect_refused({{"w_bits", 4.5}}, ErrorCode::kCorrupt, "expected an integer");
  expect_refused({{"w_bits", -4}}, ErrorCode::kInvalidArgument, "expected 2 to 8, or 16");
  expect_refused({{"a_clip", "no"}}, ErrorCode::kCorrupt, "expected a number");
  expect_refused({{"center", "q"}}, ErrorCode::kInvalidArgument, "none, k, kv");
  expect_refused({{"w_method", "awq"}}, ErrorCode::kInvalidArgument, "rtn, gptq");
  expect_refused({{"base", "nothing"}}, ErrorCode::kNotFound, "no recipe \"nothing\"");
  expect_refused({{"site_bits", "o_proj=A8"}}, ErrorCode::kCorrupt, "expected a list");
  expect_refused({{"site_bits", {8}}}, ErrorCode::kCorrupt, "expected a list");
  expect_refused({{"site_bits", {"o_proj=A9"}}}, ErrorCode::kInvalidArgument, "bits 2 to 8");
  expect_refused({{"a_budget", "4.5"}}, ErrorCode::kCorrupt, "expected a number");
  expect_refused({{"seed", -1}}, ErrorCode::kCorrupt, "0 or more");
  expect_refused({{"transforms", 1}}, ErrorCode::kCorrupt, "object of transforms");
  expect_refused({{"transforms", {{"head", false}}}}, ErrorCode::kInvalidArgument,
                 "\"head\" is no field");
  expect_refused({{"transforms", {{"kind", "dct"}}}}, ErrorCode::kCorrupt, "plain-hadamard");
  expect_refused({{"transforms", {{"residual", true}, {"norm_output", true}}}},
                 ErrorCode::kInvalidArgument, "choose one");
  expect_refused({{"base", "balanced"}, {"transforms", {{"residual", true}}}},
                 ErrorCode::kInvalidArgument, "choose one");
}

// residual, norm_output, value, heads, query_key, ffn as a string of letters.
std::string flags(const TransformSpec& s) {
  std::string text;
  for (const auto& [on, letter] : {std::pair{s.residual, '1'},
                                   {s.norm_output, 'n'},
                                   {s.value, '2'},
                                   {s.heads, 'h'},
                                   {s.query_key, '3'},
                                   {s.ffn, '4'}}) {
    if (on) text += letter;
  }
  return text;
}

TEST(SetRotations, ReadsItsGrammar) {
  struct Case {
    const char* list;
    const char* from_quarot;
    const char* from_balanced;
  };
  for (const Case& c : {Case{"all", "12h34", "n2h34"}, Case{"none", "", ""}, Case{"R1", "1", "n"},
                        Case{"R2", "2h", "2h"}, Case{"R3,R4", "34", "34"}, Case{"norm", "n", "n"},
                        Case{"heads", "h", "h"}, Case{"all,-heads", "1234", "n234"},
                        Case{"-R1", "2h34", "2h34"}, Case{"-heads,-R3", "124", "n24"},
                        Case{"all,-R1", "2h34", "2h34"}, Case{"R1,R2,-heads", "12", "n2"},
                        Case{"all,norm", "n2h34", "n2h34"}, Case{"", "12h34", "n2h34"}}) {
    TransformSpec quarot = value_of(recipe_by_name("quarot")).transforms;
    testing::expect_ok(set_rotations(c.list, quarot));
    EXPECT_EQ(flags(quarot), c.from_quarot) << c.list;
    TransformSpec balanced = value_of(recipe_by_name("balanced")).transforms;
    testing::expect_ok(set_rotations(c.list, balanced));
    EXPECT_EQ(flags(balanced), c.from_balanced) << c.list;
  }
  for (const char* bad : {"R5", "r1", "R1,,R2", "-all", "-none", "R1;R2", " R1"}) {
    TransformSpec spec;
    const Status status = set_rotations(bad, spec);
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message().find("expected all, none"), std::string::npos);
  }
}

TEST(BitsLabel, IsTheFieldsName) {
  Recipe r;
  EXPECT_EQ(bits_label(r), "W16A16KV16");
  r = value_of(recipe_by_name("naive"));
  EXPECT_EQ(bits_label(r), "W4A4KV4");
  r.precision.activations.bits = 8;
  r.precision.values.bits = 3;
  EXPECT_EQ(bits_label(r), "W4A8K4V3");
  r.head_bits = 8;
  EXPECT_EQ(bits_label(r), "W4A8K4V3H8");
  r = value_of(recipe_by_name("naive"));
  r.site_bits = {{"o_proj", {}, 0, 8}, {"all", {{3, 3}}, 2, 0}, {"down_proj", {}, 0, 6}};
  EXPECT_EQ(bits_label(r), "W2/4A4/6/8KV4");
  r.site_bits.clear();
  r.a_budget = 5;
  EXPECT_EQ(bits_label(r), "W4A4/8KV4");
}

TEST(BitsLabel, IsReadBack) {
  for (const char* label : {"W4A4KV4", "W4A8K4V3", "W16A16KV16", "W2A3K8V16", "W4A4KV4E8H8",
                            "W4A8KV16H4", "W4A4K4V2E4"}) {
    Recipe r;
    testing::expect_ok(set_bits(label, r));
    EXPECT_EQ(bits_label(r), label);
  }
  Recipe r;
  testing::expect_ok(set_bits("W8A8", r));
  EXPECT_EQ(bits_label(r), "W8A8KV16");
  for (const char* bad : {"", "W4", "W4A8KV", "W4A8K4", "W4A8KV4x", "A4W4KV4", "W4A8V4K4",
                          "W4A8KV4H8E8", "W4A8KV4E", "W123A4"})
    EXPECT_FALSE(set_bits(bad, r).ok()) << bad;
}

TEST(Recipe, GroupsAreHalvedUntilTheyFit) {
  const ModelConfig config = value_of(parse_config(testing::config_json(), "test"));
  Recipe recipe = value_of(recipe_by_name("awq"));
  EXPECT_EQ(recipe.weights.group, 128);
  EXPECT_EQ(fitted(recipe, config).weights.group, 16);  // widths 48, 80 and 96
  recipe.fit_groups = false;
  EXPECT_EQ(fitted(recipe, config).weights.group, 128);
  // At most 6 channels of 48 are kept: of groups of 8 none leaves a multiple, of 4 it is 4.
  recipe = fitted(value_of(recipe_by_name("atom")), config);
  EXPECT_EQ(recipe.weights.group, 4);
  EXPECT_EQ(recipe.precision.activations.group, 4);
}

TEST(CheckRecipe, NamesWhatDoesNotFit) {
  const ModelConfig config = value_of(parse_config(testing::config_json(), "test"));
  testing::expect_ok(check(value_of(recipe_by_name("balanced")), config));
  const auto refused = [&](const json& changes, const std::string& message) {
    json text = changes;
    text["base"] = "balanced";
    const Status status = check(parse(text), config);
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message().find(message), std::string::npos)
        << status.error().message();
  };
  refused({{"w_bits", 1}}, "q_proj");
  refused({{"w_bits", 9}}, "9");
  refused({{"a_bits", 64}}, "64");
  refused({{"w_group", 32}}, "q_proj");     // hidden is 48
  refused({{"a_group", 48}}, "down_proj");  // the FFN is 80 wide
  refused({{"k_bits", 0}}, "0");
  refused({{"v_bits", 12}}, "12");
  refused({{"kv_group", 5}}, "5");
  refused({{"head_bits", 5}}, "lm_head: 5 bits");
  refused({{"a_clip", 0}}, "0");
  refused({{"a_clip", 1.5}}, "1.5");
  refused({{"alpha", -0.1}}, "alpha");
  refused({{"alpha", 1.1}}, "alpha");
  refused({{"keep_channels", 4}, {"keep_threshold", 6}}, "choose one");
  refused({{"keep_channels", 4}, {"keep_bits", 1}}, "q_proj");
  refused({{"w_incoherence", "random"}}, "a_bits 16");
  refused({{"w_grid", "e8"}}, "w_bits 2");
  refused({{"kv_recent", 31}}, "multiple of 32");
  refused({{"k_before_rope", true}}, "R3");
  refused({{"calibration_tokens", 0}}, "calibration_tokens");
  refused({{"w_method", "gptq"}, {"gptq_damp", -1}}, "damping -1");
  refused({{"w_method", "gptq"}, {"w_clip_by_outputs", true}}, "rounding to the nearest");
  refused({{"site_bits", {"o_proj@2=A8"}}}, "layers 0 to 1");
  refused({{"site_bits", {"o_proj=A8"}}, {"a_bits", 16}}, "in place of a_bits, which is 16");
  refused({{"site_bits", {"all=W8"}}, {"w_bits", 16}}, "in place of w_bits, which is 16");
  refused({{"w_grid", "e8"}, {"w_bits", 2}, {"site_bits", {"all=W8"}}}, "no site_bits");
  refused({{"a_budget", 3.9}}, "a_budget is 3.9");
  refused({{"a_budget", 8.1}}, "a_budget is 8.1");
  refused({{"a_budget", -1}}, "a_budget is -1");
  refused({{"w_budget", 8}, {"w_bits", 8}}, "fewer than 8");
  refused({{"w_budget", 8}, {"w_bits", 16}}, "fewer than 8");
  refused({{"w_budget", 5}, {"site_bits", {"o_proj=A8"}}}, "choose one");
}

}  // namespace
}  // namespace quarot
