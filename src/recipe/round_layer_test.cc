// The residual stream as GPTQ's target, by whole forward passes over models in memory.
#include "recipe/round_layer.h"

#include <gtest/gtest.h>

#include "quant/regression.h"
#include "support/quantized.h"
#include "support/synthetic.h"
#include "tensor/gemm.h"

namespace quarot {
namespace {

using testing::value_of;

using Windows = std::vector<std::vector<Token>>;

// The rows of one site of one layer, window by window.
class SiteRows final : public SiteObserver {
 public:
  SiteRows(int64_t layer, Space site) : layer_(layer), site_(site) {}
  void observe(int64_t layer, Space space, ConstMatrixRef rows) override {
    if (layer == layer_ && space == site_) seen_.emplace_back(rows);
  }
  const std::vector<Matrix>& seen() const { return seen_; }

 private:
  int64_t layer_;
  Space site_;
  std::vector<Matrix> seen_;
};

std::vector<Matrix> site_rows(const Model& model, const Precision& precision,
                              const Windows& windows, int64_t layer, Space site) {
  SiteRows rows(layer, site);
  SimulatedBackend backend(model, precision);
  backend.set_observer(&rows);
  for (const std::vector<Token>& window : windows) {
    const auto size = static_cast<int64_t>(window.size());
    forward(backend, {window, {{backend.add_sequence(), 0, size, 0}}});
  }
  return rows.seen();
}

Matrix outputs(const Matrix& inputs, const Linear& linear) {
  Matrix y(inputs.rows(), linear.weight.rows());
  matmul_transposed(inputs, linear.weight, y);
  for (int64_t r = 0; r < y.rows(); ++r) {
    for (size_t c = 0; c < linear.bias.size(); ++c) y(r, static_cast<int64_t>(c)) += linear.bias[c];
  }
  return y;
}

void add(const Matrix& x, float factor, Matrix& y) {
  for (int64_t i = 0; i < x.size(); ++i) y.data()[i] += factor * x.data()[i];
}

double share_of_equal(const QuantizedWeight& a, const QuantizedWeight& b) {
  int64_t equal = 0;
  for (int64_t i = 0; i < a.values.size(); ++i) equal += a.values.data()[i] == b.values.data()[i];
  return static_cast<double>(equal) / static_cast<double>(a.values.size());
}

// The gap between the two streams is a sum over the writers so far: here summed up from what each
// of them reads and writes in whole passes. Both do so in float32 and in different orders, so a
// weight between two integers may go to either.
TEST(RoundUnderHessians, WritersAimAtTheFloatResidualStream) {
  const Model model = testing::random_model(testing::config_json({{"model_type", "qwen2"}}), 3);
  const Windows windows = {testing::random_tokens(150, 96, 1), testing::random_tokens(90, 96, 2)};
  for (const char* name : {"quarot", "balanced"}) {
    SCOPED_TRACE(name);
    Recipe recipe = value_of(recipe_by_name(name));
    recipe.weight_method = WeightMethod::kGptq;
    recipe.gptq_quantized_inputs = true;
    recipe.gptq_residual = 0.75;
    const Model found = testing::quantized(recipe, model, windows);
    Recipe unrounded = recipe;
    unrounded.weights.bits = kFloatBits;
    Model reference = testing::quantized(unrounded, model, windows);
    const Basis basis =
        Transformer(model.config, recipe.transforms).basis_of(Space::kResidual, {}, 0);
    std::vector<Matrix> gap;
    for (const std::vector<Token>& window : windows)
      gap.emplace_back(static_cast<int64_t>(window.size()), model.config.hidden, 0.0F);

    for (int64_t l = 0; l < model.config.layers; ++l) {
      const auto layer = static_cast<size_t>(l);
      for (const Space site : kSites) {
        const auto inputs = site_rows(reference, recipe.precision, windows, l, site);
        const auto float_inputs = site_rows(model, {}, windows, l, site);
        Hessian hessian(model.config.width(site));
        for (const Matrix& x : inputs) hessian.add(x);
        for (const Role role : kRoles) {
          if (spaces_of(role).input != site) continue;
          Linear& linear = reference.layers[layer][role];
          const bool writes = spaces_of(role).output == Space::kResidual;
          if (writes) {
            CrossMoment lacking(linear.weight.rows(), linear.weight.cols());
            for (size_t w = 0; w < windows.size(); ++w) {
              Matrix written = outputs(float_inputs[w], model.layers[layer][role]);
              change_basis(written, basis);
              add(written, 1, gap[w]);
              Matrix lack = gap[w];
              add(outputs(inputs[w], linear), -1, lack);
              lacking.add(lack, inputs[w]);
            }
            add(value_of(regress(lacking, hessian, 0.01)), 0.75F, linear.weight);
          }
          const QuantizedWeight expected =
              value_of(gptq(recipe.weights, recipe.gptq, linear.weight, hessian));
          const auto& rounded = found.layers[layer][role].quantized;
          ASSERT_TRUE(rounded.has_value());
          EXPECT_GT(share_of_equal(*rounded, expected), 0.99) << linear_name(l, role);
          linear.weight = rounded->dequantize();
          if (!writes) continue;
          for (size_t w = 0; w < windows.size(); ++w) add(outputs(inputs[w], linear), -1, gap[w]);
        }
      }
    }
  }
}

TEST(RoundUnderHessians, AimingBringsTheLogitsNearer) {
  const Model model = testing::random_model(testing::config_json(), 5);
  const Windows windows = {testing::random_tokens(200, 96, 1), testing::random_tokens(200, 96, 2)};
  const Matrix expected = testing::logits_of(model, windows[0]);
  Recipe recipe = value_of(recipe_by_name("balanced"));
  recipe.weight_method = WeightMethod::kGptq;
  recipe.precision = {};
  recipe.weights.bits = 3;
  const double aimless = testing::relative_error(
      testing::logits_of(testing::quantized(recipe, model, windows), windows[0]), expected);
  recipe.gptq_residual = 1;
  const double aimed = testing::relative_error(
      testing::logits_of(testing::quantized(recipe, model, windows), windows[0]), expected);
  EXPECT_LT(aimed, 0.8 * aimless);
}

}  // namespace
}  // namespace quarot
