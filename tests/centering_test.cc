// Why K is centred before it is quantised: a qwen2 whose k_proj biases are large fails at 4 bits
// without, rotated or not. DESIGN.md, section 4.
#include <gtest/gtest.h>

#include "eval/perplexity.h"
#include "support/quantized.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::value_of;

constexpr int64_t kWindow = 64;

// A tiny model whose k_proj has biases of 50 on two channels a head: of those that RoPE turns
// slowly, where the large biases of trained models are.
Model loud_keys() {
  Model model = testing::load(*testing::data_folder() / "models" / "tiny" / "qwen2");
  const ModelConfig& c = model.config;
  for (Layer& layer : model.layers) {
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      for (const int64_t channel : {c.head_dim / 2 - 1, c.head_dim - 2})
        layer[Role::kKey].bias[static_cast<size_t>(head * c.head_dim + channel)] = 50;
    }
  }
  return model;
}

// KL from the float model, on tokens that calibration did not see.
double divergence(const Model& model, const char* rotations, Centering center) {
  NoProgress progress;
  Recipe recipe = value_of(recipe_by_name("quarot"));
  testing::expect_ok(set_rotations(rotations, recipe.transforms));
  recipe.weights.bits = kFloatBits;
  recipe.center = center;
  std::vector<std::vector<Token>> calibration;
  for (uint64_t seed = 0; seed < 4; ++seed)
    calibration.push_back(testing::random_tokens(kWindow, model.config.vocab, seed));
  const Model moved = testing::quantized(recipe, model, calibration);
  Precision precision;  // K and V alone
  precision.keys.bits = precision.values.bits = 4;
  SimulatedBackend backend(moved, precision);
  SimulatedBackend reference(model, {});
  std::vector<EvalWindow> windows;
  for (uint64_t seed = 100; seed < 104; ++seed)
    windows.push_back({testing::random_tokens(kWindow, model.config.vocab, seed), kWindow - 1});
  return value_of(measure_perplexity(backend, &reference, windows, progress)).against->kl;
}

TEST(Centring, SavesKeysWithLargeBiases) {
  QUAROT_NEEDS(testing::data_folder());
  const Model model = loud_keys();
  for (const char* rotations : {"none", "R3", "all"}) {
    const double without = divergence(model, rotations, Centering::kNone);
    const double keys = divergence(model, rotations, Centering::kKeys);
    const double both = divergence(model, rotations, Centering::kKeysAndValues);
    RecordProperty(std::string("kl_without_") + rotations, std::to_string(without));
    RecordProperty(std::string("kl_with_") + rotations, std::to_string(both));
    EXPECT_LT(keys, without / 4) << rotations;
    EXPECT_LT(both, without / 4) << rotations;
    EXPECT_LT(both, 0.05) << rotations;
  }
}

}  // namespace
}  // namespace quarot
