// What scaling before rotating does on tiny models of every family: docs/accuracy.md, "Why
// balancing works", has the table that this prints.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "eval/perplexity.h"
#include "support/quantized.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::value_of;

constexpr int64_t kWindow = 128;

class Balanced : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    QUAROT_NEEDS(testing::data_folder());
    model_ = testing::load(*testing::data_folder() / "models" / "tiny" / GetParam());
    for (uint64_t seed = 0; seed < 8; ++seed) {
      calibration_.push_back(testing::random_tokens(kWindow, model_.config.vocab, seed));
      windows_.push_back(
          {testing::random_tokens(kWindow, model_.config.vocab, 100 + seed), kWindow - 1});
    }
  }

  // KL from the float model, on tokens that calibration did not see: the mean over three seeds of
  // the rotations.
  double divergence(Recipe recipe) const {
    NoProgress progress;
    SimulatedBackend reference(model_, {});
    double sum = 0;
    for (const uint64_t seed : {0, 1, 2}) {
      recipe.seed = recipe.transforms.seed = seed;
      const Model made = testing::quantized(recipe, model_, calibration_);
      SimulatedBackend backend(made, recipe.precision);
      sum += value_of(measure_perplexity(backend, &reference, windows_, progress)).against->kl;
    }
    return sum / 3;
  }
  double divergence(const char* bits, const char* name, const char* rotations, Scaling scaling) {
    Recipe recipe = value_of(recipe_by_name(name));
    testing::expect_ok(set_bits(bits, recipe));
    testing::expect_ok(set_rotations(rotations, recipe.transforms));
    recipe.scaling.method = scaling;
    return divergence(recipe);
  }

  Model model_;
  std::vector<std::vector<Token>> calibration_;
  std::vector<EvalWindow> windows_;
};

TEST_P(Balanced, LosesLessThanRotatingAlone) {
  std::string row = fmt::format("| {} |", GetParam());
  const auto add = [&](const char* bits, const char* name, const char* rotations, Scaling scaling) {
    const double kl = divergence(bits, name, rotations, scaling);
    row += fmt::format(" {:.4f} |", kl);
    return kl;
  };
  add("W4A4KV4", "naive", "none", Scaling::kNone);
  const double rotated = add("W4A4KV4", "quarot", "all", Scaling::kNone);
  const double unscaled = add("W4A4KV4", "balanced", "all", Scaling::kNone);
  const double unrotated = add("W4A4KV4", "balanced", "none", Scaling::kBalance);
  const double balanced = add("W4A4KV4", "balanced", "all", Scaling::kBalance);
  add("W8A8KV8", "quarot", "all", Scaling::kNone);
  add("W8A8KV8", "balanced", "all", Scaling::kBalance);
  fmt::print("{}\n", row);
  EXPECT_LT(balanced, rotated);
  EXPECT_LT(balanced, unscaled);
  EXPECT_LT(balanced, unrotated);
}

INSTANTIATE_TEST_SUITE_P(Families, Balanced, ::testing::ValuesIn(testing::kTinyModels),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quarot
