// What a change of basis does to each linear, at the widths and head counts of real models.
#include "model/transform.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::config_json;
using testing::random_model;

// B as a dense matrix, column by column.
BasicMatrix<double> dense(const Basis& basis, int64_t n) {
  BasicMatrix<double> columns(n, n, 0.0);  // row j becomes B·e_j
  for (int64_t j = 0; j < n; ++j) columns(j, j) = 1;
  basis.apply(columns.view());
  return columns;
}

TEST(Basis, InverseTransposedUndoesTheProduct) {
  Random random(1);
  Basis basis;
  std::vector<double> diagonal(12);
  for (double& d : diagonal) d = 0.5 + random.uniform();
  basis.scale(diagonal);
  basis.rotate(Orthogonal::randomised_hadamard(12, 2));
  for (double& d : diagonal) d = -0.5 - random.uniform();
  basis.scale(diagonal);
  basis.rotate(Orthogonal::random(12, 3));
  // (B x)·(B⁻ᵀ w) = x·w.
  BasicMatrix<double> x(1, 12);
  BasicMatrix<double> w(1, 12);
  for (int64_t i = 0; i < 12; ++i) {
    x(0, i) = random.normal();
    w(0, i) = random.normal();
  }
  double before = 0;
  for (int64_t i = 0; i < 12; ++i) before += x(0, i) * w(0, i);
  basis.apply(x.view());
  basis.apply_inverse_transposed(w.view());
  double after = 0;
  for (int64_t i = 0; i < 12; ++i) after += x(0, i) * w(0, i);
  EXPECT_NEAR(after, before, 1e-12);
}

TEST(ChangeBasis, IsTheDenseProduct) {
  Random random(4);
  Basis in;
  in.rotate(Orthogonal::random(10, 5));
  Basis out;
  out.scale(std::vector<double>(300, 0.5));
  out.rotate(Orthogonal::hadamard(300));  // more rows and columns than one block of 256
  const Matrix weight = testing::random_matrix(random, 300, 10, 1);
  const std::vector<float> gain = testing::random_vector(random, 10, 1, 0.3);
  Matrix changed = weight;
  change_input_basis(changed, gain, in);
  change_output_basis(changed, out);
  const BasicMatrix<double> b_in = dense(in, 10);  // orthogonal: its inverse transpose is itself
  const BasicMatrix<double> b_out = dense(out, 300);
  for (int64_t r = 0; r < 300; r += 7) {
    for (int64_t c = 0; c < 10; ++c) {
      double exact = 0;
      for (int64_t i = 0; i < 300; ++i) {
        for (int64_t j = 0; j < 10; ++j)
          exact += b_out(i, r) * double{weight(i, j)} * gain[static_cast<size_t>(j)] * b_in(j, c);
      }
      EXPECT_NEAR(changed(r, c), exact, 1e-6);
    }
  }
  std::vector<float> bias = testing::random_vector(random, 300, 0, 1);
  const std::vector<float> before = bias;
  change_basis(bias, out);
  for (int64_t r = 0; r < 300; r += 7) {
    double exact = 0;
    for (int64_t i = 0; i < 300; ++i) exact += b_out(i, r) * double{before[static_cast<size_t>(i)]};
    EXPECT_NEAR(bias[static_cast<size_t>(r)], exact, 1e-6);
  }
}

TransformSpec everything(bool fused) {
  TransformSpec spec;
  (fused ? spec.residual : spec.norm_output) = true;
  spec.value = spec.heads = spec.query_key = spec.ffn = true;
  spec.seed = 3;
  return spec;
}

Model transformed(Model model, const TransformSpec& spec,
                  const std::vector<LayerScales>& scales = {},
                  const std::vector<LayerCenters>& centers = {}) {
  const Transformer transformer(model.config, spec);
  transformer.transform_outer(model);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    transformer.transform_layer(model.layers[i], static_cast<int64_t>(i),
                                scales.empty() ? LayerScales() : scales[i],
                                centers.empty() ? LayerCenters() : centers[i]);
  }
  return model;
}

// The rows each linear reads, layer by layer.
class Sites final : public SiteObserver {
 public:
  explicit Sites(int64_t layers) : rows(static_cast<size_t>(layers)) {}
  void observe(int64_t layer, Space space, ConstMatrixRef seen) override {
    rows[static_cast<size_t>(layer)][static_cast<size_t>(space)] = Matrix(seen);
  }
  std::vector<std::array<Matrix, 12>> rows;
};

// x·wᵀ in float64, so that only the rounding of x and w to float32 shows.
std::vector<double> product(const Matrix& x, const Linear& linear) {
  std::vector<double> y;
  for (int64_t t = 0; t < x.rows(); ++t) {
    for (int64_t r = 0; r < linear.weight.rows(); ++r) {
      double sum = linear.bias.empty() ? 0.0 : double{linear.bias[static_cast<size_t>(r)]};
      for (int64_t c = 0; c < x.cols(); ++c) sum += double{x(t, c)} * linear.weight(r, c);
      y.push_back(sum);
    }
  }
  return y;
}

// The relative error of x̃·W̃ᵀ against x·Wᵀ, each model's rows as its own float32 forward pass made
// them. Outputs in a basis of their own (v_proj, and with R1 o_proj and down_proj) are compared by
// their inner products, which orthogonal bases keep.
double product_error(const std::vector<double>& a, const std::vector<double>& b, int64_t cols,
                     bool same_basis) {
  double difference = 0;
  double norm = 0;
  for (const double value : b) norm += value * value;
  if (same_basis) {
    for (size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]);
    return std::sqrt(difference / norm);
  }
  // Gram matrices: aaᵀ against bbᵀ. Their relative error is up to twice that of the rows.
  const auto rows = static_cast<int64_t>(a.size()) / cols;
  double gram_norm = 0;
  for (int64_t s = 0; s < rows; ++s) {
    for (int64_t t = 0; t < rows; ++t) {
      double of_a = 0;
      double of_b = 0;
      for (int64_t c = 0; c < cols; ++c) {
        of_a += a[s * cols + c] * a[t * cols + c];
        of_b += b[s * cols + c] * b[t * cols + c];
      }
      difference += (of_a - of_b) * (of_a - of_b);
      gram_norm += of_b * of_b;
    }
  }
  return std::sqrt(difference / gram_norm) / 2;
}

TEST(Transformer, KeepsEachSitesProduct) {
  for (const bool fused : {true, false}) {
    const Model before = random_model(config_json({{"num_hidden_layers", 1}}), 5);
    const Model after = transformed(before, everything(fused));
    const std::vector<Token> tokens = testing::random_tokens(12, 96, 6);
    Sites old_sites(1);
    Sites new_sites(1);
    for (const auto& [model, sites] : {std::pair{&before, &old_sites}, {&after, &new_sites}}) {
      SimulatedBackend backend(*model, {});
      backend.set_observer(sites);
      forward(backend, {tokens, {{backend.add_sequence(), 0, 12, 0}}});
    }
    for (const Role role : kRoles) {
      const RoleSpaces spaces = spaces_of(role);
      const auto site = static_cast<size_t>(spaces.input);
      const bool same = role != Role::kValue && !(fused && spaces.output == Space::kResidual);
      const double error = product_error(product(new_sites.rows[0][site], after.layers[0][role]),
                                         product(old_sites.rows[0][site], before.layers[0][role]),
                                         before.layers[0][role].weight.rows(), same);
      EXPECT_LT(error, 8e-7) << spaces.name << (fused ? ", R1 fused" : ", online");
    }
  }
}

// The head counts and widths of real models, one layer each, small where they do not matter.
TEST(Transformer, WorksForEveryHeadCountAndWidth) {
  struct Shape {
    int64_t hidden, heads, kv_heads, head_dim, ffn;
  };
  for (const Shape& s :
       {Shape{576, 9, 3, 64, 64},    // SmolLM2
        Shape{896, 14, 2, 64, 64},   // Qwen2.5-0.5B
        Shape{64, 7, 1, 16, 4864},   // its FFN
        Shape{1536, 12, 2, 8, 64},   // Qwen2.5-1.5B
        Shape{64, 24, 8, 8, 5632},   // TinyLlama's FFN
        Shape{64, 40, 10, 4, 9728},  // Phi-3-medium, Qwen3-4B's FFN
        Shape{32, 28, 4, 4, 11008}, Shape{32, 2, 2, 4, 13696}, Shape{32, 2, 1, 4, 14336},
        Shape{32, 2, 1, 4, 18944}, Shape{32, 2, 1, 4, 28672}, Shape{32, 2, 1, 4, 29568},
        Shape{36, 1, 1, 6, 10}, Shape{13, 11, 1, 2, 107}}) {
    const Model before = random_model(config_json({{"num_hidden_layers", 1},
                                                   {"hidden_size", s.hidden},
                                                   {"num_attention_heads", s.heads},
                                                   {"num_key_value_heads", s.kv_heads},
                                                   {"head_dim", s.head_dim},
                                                   {"intermediate_size", s.ffn}}),
                                      7);
    const std::vector<Token> tokens = testing::random_tokens(10, 96, 8);
    const Matrix expected = testing::logits_of(before, tokens);
    for (const bool fused : {true, false}) {
      const Model after = transformed(before, everything(fused));
      EXPECT_LT(testing::relative_error(testing::logits_of(after, tokens), expected), 5e-6)
          << "hidden " << s.hidden << ", " << s.heads << " heads of " << s.head_dim << ", FFN "
          << s.ffn << (fused ? ", R1 fused" : ", online");
    }
  }
}

TEST(Transformer, ScalesStandBeforeTheRotations) {
  const Model before = random_model(config_json({{"model_type", "qwen3"}}), 9);
  const std::vector<Token> tokens = testing::random_tokens(30, 96, 10);
  const Matrix expected = testing::logits_of(before, tokens);
  Random random(11);
  const auto scale = [&](int64_t n) {
    std::vector<double> values(static_cast<size_t>(n));
    for (double& value : values) value = std::exp(random.normal());
    return values;
  };
  for (const bool rotated : {true, false}) {
    std::vector<LayerScales> scales;
    for (int i = 0; i < 2; ++i) {
      scales.push_back({.attention_input = scale(48),
                        .ffn_input = scale(48),
                        .value = scale(32),
                        .ffn_hidden = scale(80)});
    }
    const TransformSpec spec = rotated ? everything(false) : TransformSpec();
    const Model after = transformed(before, spec, scales);
    EXPECT_LT(testing::relative_error(testing::logits_of(after, tokens), expected), 1e-5);
    EXPECT_NE(after.layers[0].attention_norm, before.layers[0].attention_norm);
  }
}

// Any constants, not the mean alone, leave the function as it was.
TEST(Transformer, CentresAreExact) {
  const Model before = random_model(config_json({{"model_type", "qwen2"}}), 12);
  const std::vector<Token> tokens = testing::random_tokens(30, 96, 13);
  const Matrix expected = testing::logits_of(before, tokens);
  Random random(14);
  for (const TransformSpec& spec : {TransformSpec(), everything(true), everything(false)}) {
    std::vector<LayerCenters> centers;
    for (int i = 0; i < 2; ++i) {
      centers.push_back({.key = testing::random_vector(random, 32, 0, 2),
                         .value = testing::random_vector(random, 32, 0, 2)});
    }
    const Model after = transformed(before, spec, {}, centers);
    EXPECT_LT(testing::relative_error(testing::logits_of(after, tokens), expected), 1e-5);
  }
}

// What a linear reads can be computed from what it read before, without a forward pass.
TEST(Transformer, InputsFollowTheirSites) {
  const Model before = random_model(config_json({{"model_type", "qwen2"}}), 17);
  const std::vector<Token> tokens = testing::random_tokens(30, 96, 18);
  Random random(19);
  const LayerCenters centers = {.key = {}, .value = testing::random_vector(random, 32, 0, 2)};
  for (const TransformSpec& spec : {TransformSpec(), everything(true), everything(false)}) {
    LayerScales scales;
    scales.value = std::vector<double>(32, 3.0);
    if (!spec.residual) scales.attention_input = std::vector<double>(48, 0.5);
    const Transformer transformer(before.config, spec);
    const Model after = transformed(before, spec, {scales, scales}, {centers, centers});
    Sites old_sites(2);
    Sites new_sites(2);
    for (const auto& [model, sites] : {std::pair{&before, &old_sites}, {&after, &new_sites}}) {
      SimulatedBackend backend(*model, {});
      backend.set_observer(sites);
      forward(backend, {tokens, {{backend.add_sequence(), 0, 30, 0}}});
    }
    for (int64_t layer = 0; layer < 2; ++layer) {
      const auto l = static_cast<size_t>(layer);
      for (const Space site : kSites) {
        Matrix& rows = old_sites.rows[l][static_cast<size_t>(site)];
        transformer.transform_inputs(rows, site, before.layers[l], layer, scales, centers);
        EXPECT_LT(testing::relative_error(rows, new_sites.rows[l][static_cast<size_t>(site)]), 1e-5)
            << space_name(site) << " of layer " << layer;
      }
    }
  }
}

TEST(Transformer, SeedsAreReproducibleAndDiffer) {
  const Model model = random_model(config_json(), 15);
  TransformSpec spec = everything(true);
  const auto weight = [&] {
    const Model after = transformed(model, spec);
    const auto elements = after.layers[1][Role::kGate].weight.elements();
    return std::vector<float>(elements.begin(), elements.end());
  };
  const std::vector<float> first = weight();
  EXPECT_EQ(weight(), first);
  spec.seed = 4;
  EXPECT_NE(weight(), first);
}

TEST(Transformer, UntiesOnlyWhereItMust) {
  const Model model = random_model(config_json({{"tie_word_embeddings", true}}), 16);
  const Model fused = transformed(model, everything(true));
  EXPECT_FALSE(fused.lm_head.empty());
  EXPECT_FALSE(fused.config.tied_embeddings);
  const Model online = transformed(model, everything(false));
  EXPECT_TRUE(online.lm_head.empty());
  EXPECT_TRUE(online.config.tied_embeddings);
}

}  // namespace
}  // namespace quarot
