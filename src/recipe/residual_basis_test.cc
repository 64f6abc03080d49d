#include "recipe/residual_basis.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace quarot
