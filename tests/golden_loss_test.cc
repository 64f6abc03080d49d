// Losses of SmolLM2 on WikiText-2 against independent implementations: float, simulated
// quantisations without rotation, and QuaRot. A few windows by default; the whole text, which takes
// many minutes each, with QUAROT_FULL=1 in the environment.
#include <gtest/gtest.h>

#include <cmath>

#include "base/mapped_file.h"
#include "eval/perplexity.h"
#include "recipe/prepare.h"
#include "support/model.h"
#include "support/sanitizer.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using testing::data_folder;
using testing::full;
using testing::value_of;

class GoldenLoss : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::under_sanitizer()) GTEST_SKIP() << "a quarter of an hour each under a sanitizer";
    if (!data_folder() || !testing::smollm2()) return;
    checkpoint_ = value_of(open_checkpoint(*testing::smollm2()));
    tokenizer_ = value_of(checkpoint_->open_tokenizer());
    golden_ = testing::read_json(*data_folder() / "golden" / "smollm2.nll.json")["windows"];
  }

  std::vector<double> golden(const char* name) const {
    return golden_[name]["nll"].get<std::vector<double>>();
  }

  // Losses of the first windows; of all, 2048 tokens each, with QUAROT_FULL.
  PerplexityResult measure(const Recipe& recipe, int64_t windows, int64_t window = 2048) const {
    NoProgress progress;
    const fs::path text = *data_folder() / "wikitext2";
    const std::vector<Token> tokens =
        tokenizer_->encode(value_of(read_text_file(text / "test.joined.txt")));
    PerplexityOptions options;
    options.window = full() ? 2048 : window;
    options.max_windows = full() ? 0 : windows;
    PreparedModel prepared = value_of(
        prepare_model(*checkpoint_, *tokenizer_, recipe, text / "train.first-1mb.txt", progress));
    SimulatedBackend backend(prepared.model, prepared.recipe.precision);
    return value_of(measure_perplexity(
        backend, nullptr, value_of(cut_windows(tokens, options, std::nullopt)), progress));
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json golden_;
};

double mean(const std::vector<double>& values, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += values[i];
  return sum / static_cast<double>(count);
}

TEST_F(GoldenLoss, Float) {
  QUAROT_NEEDS(data_folder());
  QUAROT_NEEDS(testing::smollm2());
  const std::vector<double> expected = golden("float");
  const PerplexityResult result = measure(Recipe(), 2);
  if (full()) {
    EXPECT_EQ(result.nll.size(), expected.size());
    EXPECT_NEAR(result.perplexity, 21.6086, 0.002);
  }
  for (size_t i = 0; i < result.nll.size(); ++i)
    EXPECT_NEAR(result.nll[i], expected[i], 1e-4) << "window " << i;
  EXPECT_EQ(result.tokens, static_cast<int64_t>(result.nll.size()) * 2047);
}

struct Simulated {
  const char* golden;
  const char* recipe;
  int64_t windows;
};

class GoldenQuantisation : public GoldenLoss, public ::testing::WithParamInterface<Simulated> {};

// A quantised value on a rounding boundary may fall either way, so the means are compared. A cache
// of 4 bits amplifies that most: a window's loss moves by 0.01 and the mean over three by less.
TEST_P(GoldenQuantisation, MeanLoss) {
  QUAROT_NEEDS(data_folder());
  QUAROT_NEEDS(testing::smollm2());
  const Recipe recipe = value_of(parse_recipe(nlohmann::json::parse(GetParam().recipe), "test"));
  const PerplexityResult result = measure(recipe, GetParam().windows);
  const size_t count = result.nll.size();
  const double expected = mean(golden(GetParam().golden), count);
  EXPECT_NEAR(mean(result.nll, count), expected, 0.003 * expected);
  if (full()) {
    EXPECT_EQ(count, 148U);
  }
}

INSTANTIATE_TEST_SUITE_P(
    WithoutRotation, GoldenQuantisation,
    ::testing::Values(
        Simulated{"A8-clip0.9", R"({"a_bits": 8, "a_clip": 0.9})", 1},
        Simulated{"KV4", R"({"k_bits": 4, "v_bits": 4, "k_clip": 0.95, "v_clip": 0.95})", 3},
        Simulated{"W4-rtn-unfolded-search0", R"({"w_bits": 4, "w_search_clip": false})", 1},
        Simulated{"W4g32-rtn-unfolded-search1",
                  R"({"w_bits": 4, "w_group": 32, "w_search_clip": true})", 1}),
    [](const auto& tested) {
      std::string name = tested.param.golden;
      std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
      return name;
    });

// Where there is no golden value to compare with: two short windows, against float on the same.
constexpr int64_t kShort = 512;

TEST_F(GoldenLoss, RotatedOnlyEqualsFloat) {
  QUAROT_NEEDS(data_folder());
  QUAROT_NEEDS(testing::smollm2());
  Recipe recipe;
  recipe.transforms = value_of(recipe_by_name("quarot")).transforms;
  const PerplexityResult rotated = measure(recipe, 2, kShort);
  const PerplexityResult original = measure(Recipe(), 2, kShort);
  for (size_t i = 0; i < original.nll.size(); ++i)
    EXPECT_NEAR(rotated.nll[i], original.nll[i], 1e-4) << "window " << i;
}

// What quantisation adds to the loss varies little from window to window: by ±0.1 for each of the
// quantisations in the golden file. So a bound P on the whole text's perplexity, where float has
// 21.6086, becomes for a few windows a bound ln(P/21.6086) on what is added to float's mean loss on
// the same windows, give or take this:
constexpr double kSlack = 0.2;

void expect_perplexity(const PerplexityResult& result, const PerplexityResult& original,
                       double lowest, double highest) {
  if (full()) {
    EXPECT_GE(result.perplexity, lowest);
    EXPECT_LE(result.perplexity, highest);
    return;
  }
  const double added = std::log(result.perplexity / original.perplexity);
  EXPECT_GE(added, std::log(lowest / 21.6086) - kSlack);
  EXPECT_LE(added, std::log(highest / 21.6086) + kSlack);
}

class QuarotSeeds : public GoldenLoss, public ::testing::WithParamInterface<uint64_t> {};

TEST_P(QuarotSeeds, W4A4KV4) {
  QUAROT_NEEDS(data_folder());
  QUAROT_NEEDS(testing::smollm2());
  if (GetParam() > 0 && !full()) GTEST_SKIP() << "further seeds need QUAROT_FULL=1";
  Recipe recipe = value_of(recipe_by_name("quarot"));
  recipe.seed = recipe.transforms.seed = GetParam();
  const PerplexityResult original = full() ? PerplexityResult() : measure(Recipe(), 2, kShort);
  expect_perplexity(measure(recipe, 2, kShort), original, 100, 160);
}

INSTANTIATE_TEST_SUITE_P(Seeds, QuarotSeeds, ::testing::Values(0, 1, 2, 3, 4));

TEST_F(GoldenLoss, BalancedW4A4KV4) {
  QUAROT_NEEDS(data_folder());
  QUAROT_NEEDS(testing::smollm2());
  Recipe recipe = value_of(recipe_by_name("balanced"));
  if (!full()) recipe.calibration_tokens = 2048;
  const PerplexityResult original = full() ? PerplexityResult() : measure(Recipe(), 2, kShort);
  expect_perplexity(measure(recipe, 2, kShort), original, 21.6086, 36);
}

}  // namespace
}  // namespace quarot
