// A change of basis keeps the function: fold, rotate, no quantisation, the original logits to
// round-off.
#include <gtest/gtest.h>

#include "support/quantized.h"

namespace quarot {
namespace {

using testing::data_folder;
using testing::smollm2;
using testing::value_of;

Recipe unquantized(const char* name) {
  Recipe recipe = value_of(recipe_by_name(name));
  recipe.weights.bits = kFloatBits;
  recipe.precision = Precision();
  return recipe;
}

// The relative logit error of the model moved into the recipe's bases, calibrated on the tokens
// themselves.
double logit_error(const Model& model, const Recipe& recipe, const std::vector<Token>& ids) {
  return testing::relative_error(testing::logits_of(testing::quantized(recipe, model, {ids}), ids),
                                 testing::logits_of(model, ids));
}

class Invariance : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!data_folder()) return;
    const auto folder = *data_folder() / "models" / "tiny" / GetParam();
    model_ = testing::load(folder);
    ids_ = testing::read_json(folder / "expected.json")["ids"].get<std::vector<Token>>();
  }
  Model model_;
  std::vector<Token> ids_;
};

TEST_P(Invariance, OfEveryRecipe) {
  QUAROT_NEEDS(data_folder());
  for (const char* name : {"quarot", "balanced"})
    EXPECT_LT(logit_error(model_, unquantized(name), ids_), 1e-5) << name;
}

TEST_P(Invariance, OfEveryBasis) {
  QUAROT_NEEDS(data_folder());
  for (const char* recipe_name : {"quarot", "balanced"}) {
    for (const BasisKind kind :
         {BasisKind::kHadamard, BasisKind::kPlainHadamard, BasisKind::kRandom}) {
      Recipe recipe = unquantized(recipe_name);
      recipe.transforms.kind = kind;
      recipe.transforms.seed = 7;
      EXPECT_LT(logit_error(model_, recipe, ids_), 1e-5);
    }
  }
}

TEST_P(Invariance, OfEachRotationAlone) {
  QUAROT_NEEDS(data_folder());
  for (const char* rotations :
       {"none", "R1", "R2", "R3", "R4", "heads", "norm", "all,-heads", "R1,R2,R3,R4"}) {
    Recipe recipe = unquantized("quarot");
    testing::expect_ok(set_rotations(rotations, recipe.transforms));
    EXPECT_LT(logit_error(model_, recipe, ids_), 1e-5) << rotations;
  }
}

// The rotation must do something: leaving its inverse out of one weight must show.
TEST_P(Invariance, IsLostWhenOneWeightIsLeftOut) {
  QUAROT_NEEDS(data_folder());
  Model moved = testing::quantized(unquantized("quarot"), model_);
  moved.layers[0][Role::kDown].weight = model_.layers[0][Role::kDown].weight;
  EXPECT_GT(
      testing::relative_error(testing::logits_of(moved, ids_), testing::logits_of(model_, ids_)),
      1e-2);
}

INSTANTIATE_TEST_SUITE_P(Families, Invariance, ::testing::ValuesIn(testing::kTinyModels),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(SmolLM2Invariance, OfEveryRecipe) {
  QUAROT_NEEDS(smollm2());
  const Model model = testing::load(*smollm2());
  std::vector<Token> ids;
  for (Token id = 0; id < 64; ++id) ids.push_back(1000 + 37 * id);
  for (const char* name : {"quarot", "balanced"})
    EXPECT_LT(logit_error(model, unquantized(name), ids), 1e-5) << name;
}

}  // namespace
}  // namespace quarot
