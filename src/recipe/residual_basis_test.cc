#include "recipe/residual_basis.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/quantized.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

class NormRows final : public SiteObserver {
 public:
  void observe(int64_t, Space space, ConstMatrixRef rows) override {
    if (space == Space::kAttentionInput || space == Space::kFfnInput) seen.emplace_back(rows);
  }
  std::vector<Matrix> seen;
};

// In the new basis, with the gains folded away, the norms' outputs are uncorrelated over the tokens
// that it was found on, and their powers fall; the function stays.
TEST(ResidualBasis, UncorrelatesTheNormsOutputs) {
  const Model model = testing::random_model(testing::config_json(), 3);
  const std::vector<Token> tokens = testing::random_tokens(200, 96, 4);
  Recipe recipe;
  recipe.transforms.residual = true;
  recipe.transforms.kind = BasisKind::kPrincipal;
  const Model moved = testing::quantized(recipe, model, {tokens});
  EXPECT_LT(
      testing::relative_error(testing::logits_of(moved, tokens), testing::logits_of(model, tokens)),
      5e-6);
  SimulatedBackend backend(moved, {});
  NormRows norms;
  backend.set_observer(&norms);
  forward(backend, {tokens, {{backend.add_sequence(), 0, 200, 0}}});
  BasicMatrix<double> sums(48, 48, 0.0);
  for (const Matrix& rows : norms.seen) {
    for (int64_t r = 0; r < rows.rows(); ++r) {
      for (int64_t i = 0; i < 48; ++i) {
        for (int64_t j = 0; j < 48; ++j) sums(i, j) += double{rows(r, i)} * rows(r, j);
      }
    }
  }
  ASSERT_EQ(norms.seen.size(), 4U);
  for (int64_t i = 0; i < 48; ++i) {
    for (int64_t j = 0; j < i; ++j) EXPECT_NEAR(sums(i, j), 0, 1e-4 * sums(0, 0));
    if (i > 0) {
      EXPECT_LE(sums(i, i), 1.0001 * sums(i - 1, i - 1));
    }
  }
  EXPECT_GT(sums(0, 0), 2 * sums(47, 47));
}

// Of what the norms give in the model's new basis, the mean of ‖·‖₈² over ‖·‖².
double loudness(const Model& model, const std::vector<Token>& tokens) {
  SimulatedBackend backend(model, {});
  NormRows norms;
  backend.set_observer(&norms);
  forward(backend, {tokens, {{backend.add_sequence(), 0, std::ssize(tokens), 0}}});
  double sum = 0;
  for (const Matrix& rows : norms.seen) {
    for (int64_t r = 0; r < rows.rows(); ++r) {
      double squares = 0;
      double eighths = 0;
      for (const double x : rows.row(r)) {
        squares += x * x;
        eighths += std::pow(x, 8);
      }
      sum += std::pow(eighths, 0.25) / squares;
    }
  }
  return sum / static_cast<double>(norms.seen.size() * tokens.size());
}

TEST(ResidualBasis, LearnsOneInWhichNormsGiveFlatRows) {
  const Model model = testing::random_model(testing::config_json(), 3);
  const std::vector<Token> tokens = testing::random_tokens(200, 96, 4);
  Recipe recipe;
  recipe.transforms.residual = true;
  const Model rotated = testing::quantized(recipe, model, {tokens});
  recipe.transforms.kind = BasisKind::kLearned;
  const Model learned = testing::quantized(recipe, model, {tokens});
  EXPECT_LT(testing::relative_error(testing::logits_of(learned, tokens),
                                    testing::logits_of(model, tokens)),
            5e-6);
  EXPECT_LT(loudness(learned, tokens), 0.8 * loudness(rotated, tokens));
}

// A tokenizer of another model: its tokens have no rows in the embedding.
TEST(ResidualBasis, RefusesForeignTokens) {
  const Model model = testing::random_model(testing::config_json(), 3);
  Recipe recipe;
  recipe.transforms.residual = true;
  recipe.transforms.kind = BasisKind::kPrincipal;
  NoProgress progress;
  const auto found = residual_basis(
      recipe, model.config, {{{1, 96}}},
      [](std::span<const Token> tokens) {
        return Result<Matrix>(Matrix(std::ssize(tokens), 48, 0.0F));
      },
      [&, layer = size_t{0}]() mutable { return Result<Layer>(model.layers[layer++]); }, progress,
      Device::kCpu);
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.error().message().find("token 96 is outside"), std::string::npos)
      << found.error().message();
}

}  // namespace
}  // namespace quarot
