// Calibration, balancing and centring: exact, and worked out by hand where they are not.
#include "recipe/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "recipe/prepare.h"
#include "runtime/cpu_layer_stream.h"
#include "support/quantized.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::value_of;

std::vector<Token> count_up(int64_t size) {
  std::vector<Token> text(static_cast<size_t>(size));
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<Token>(i);
  return text;
}

TEST(SampleWindows, DoNotOverlapAndBeginWithBos) {
  for (const std::optional<Token> bos : {std::optional<Token>(), std::optional<Token>(5000)}) {
    const auto windows = sample_windows(count_up(1000), 128, 32, bos, 3);
    ASSERT_EQ(windows.size(), 4U);
    std::set<Token> seen;
    for (const std::vector<Token>& window : windows) {
      EXPECT_EQ(window.size(), 32U);
      const size_t skip = bos ? 1 : 0;
      if (bos) {
        EXPECT_EQ(window[0], 5000);
      }
      for (size_t i = skip; i < window.size(); ++i) {
        EXPECT_TRUE(seen.insert(window[i]).second) << "twice: " << window[i];
        if (i > skip) {
          EXPECT_EQ(window[i], window[i - 1] + 1);
        }
      }
    }
  }
  EXPECT_EQ(sample_windows(count_up(1000), 128, 32, {}, 3),
            sample_windows(count_up(1000), 128, 32, {}, 3));
  EXPECT_NE(sample_windows(count_up(1000), 128, 32, {}, 3),
            sample_windows(count_up(1000), 128, 32, {}, 4));
}

TEST(SampleWindows, TakeAllOfAShorterText) {
  for (const int64_t size : {1, 20, 32, 70, 127}) {
    std::set<Token> seen;
    for (const auto& window : sample_windows(count_up(size), 128, 32, {}, 1)) {
      EXPECT_LE(window.size(), 32U);
      seen.insert(window.begin(), window.end());
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), size);
  }
}

TEST(SelfGeneratedWindows, AreReproducibleAndFitTheModel) {
  const Model model = testing::random_model(testing::config_json(), 1);
  NoProgress progress;
  EXPECT_EQ(value_of(self_generated_windows(model, 7, 32 * 512, 5, progress)).size(), 32U);
  ASSERT_EQ(value_of(self_generated_windows(model, 7, 128, 5, progress)).size(), 1U);
  const auto windows = value_of(self_generated_windows(model, 7, 1024, 5, progress));
  ASSERT_EQ(windows.size(), 4U);
  for (const std::vector<Token>& window : windows) {
    EXPECT_EQ(window.size(), 256U);
    EXPECT_EQ(window[0], 7);
    for (const Token token : window) EXPECT_TRUE(token >= 0 && token < 96);
  }
  EXPECT_EQ(windows, value_of(self_generated_windows(model, 7, 1024, 5, progress)));
  EXPECT_NE(windows, value_of(self_generated_windows(model, 7, 1024, 6, progress)));
  const Model short_context =
      testing::random_model(testing::config_json({{"max_position_embeddings", 1}}), 1);
  for (const std::vector<Token>& window :
       value_of(self_generated_windows(short_context, 7, 128, 5, progress)))
    EXPECT_EQ(window, std::vector<Token>{7});
}

// Rows at the spaces, as collect_statistics sees them.
class Rows final : public SiteObserver {
 public:
  void observe(int64_t layer, Space space, ConstMatrixRef rows) override {
    if (layer == 1) seen.emplace_back(space, Matrix(rows));
  }
  std::vector<double> of(Space space, FunctionRef<double(double)> f) const {
    std::vector<double> sum;
    int64_t count = 0;
    for (const auto& [where, rows] : seen) {
      if (where != space) continue;
      sum.resize(static_cast<size_t>(rows.cols()));
      for (int64_t r = 0; r < rows.rows(); ++r) {
        for (int64_t c = 0; c < rows.cols(); ++c) sum[c] += f(rows(r, c));
      }
      count += rows.rows();
    }
    for (double& value : sum) value /= static_cast<double>(count);
    return sum;
  }
  std::vector<double> mean(Space space) const {
    return of(space, [](double x) { return x; });
  }
  std::vector<double> largest(Space space) const {
    std::vector<double> result;
    for (const auto& [where, rows] : seen) {
      if (where != space) continue;
      result.resize(static_cast<size_t>(rows.cols()));
      for (int64_t r = 0; r < rows.rows(); ++r) {
        for (int64_t c = 0; c < rows.cols(); ++c)
          result[c] = std::max(result[c], std::abs(double{rows(r, c)}));
      }
    }
    return result;
  }
  // Of all windows, one after another.
  std::span<const float> row(Space space, int64_t index) const {
    for (const auto& [where, rows] : seen) {
      if (where != space) continue;
      if (index < rows.rows()) return rows.row(index);
      index -= rows.rows();
    }
    return {};
  }
  std::vector<std::pair<Space, Matrix>> seen;
};

void expect_close(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], 1e-12 + 1e-9 * std::abs(expected[i]));
}

Matrix embedded(const Model& model, const std::vector<Token>& tokens) {
  Matrix rows(static_cast<int64_t>(tokens.size()), model.config.hidden);
  for (int64_t r = 0; r < rows.rows(); ++r)
    model.embedding.read_row(tokens[static_cast<size_t>(r)], rows.row(r));
  return rows;
}

TEST(CollectStatistics, AreTheMomentsOverAllWindows) {
  const Model model = testing::random_model(testing::config_json({{"model_type", "qwen2"}}), 1);
  const std::vector<std::vector<Token>> windows = {testing::random_tokens(9, 96, 1),
                                                   testing::random_tokens(30, 96, 2)};
  NoProgress progress;
  CpuLayerStream stream(model.config, {}, {}, progress);
  testing::expect_ok(stream.reserve(39));
  for (const std::vector<Token>& window : windows)
    testing::expect_ok(stream.add_window(window, embedded(model, window)));
  std::vector<LayerStatistics> statistics;
  for (int64_t i = 0; i < 2; ++i) {
    stream.put_layer(i, model.layers[static_cast<size_t>(i)]);
    statistics.push_back(value_of(collect_statistics(stream, 7)));
    stream.take_layer();
  }
  SimulatedBackend backend(model, {});
  Rows rows;
  backend.set_observer(&rows);
  for (const std::vector<Token>& window : windows) {
    const auto size = static_cast<int64_t>(window.size());
    forward(backend, {window, {{backend.add_sequence(), 0, size, 0}}});
  }
  for (const Space site : kSites) {
    const ChannelStatistics& channels = statistics[1][site];
    expect_close(channels.mean_square, rows.of(site, [](double x) { return x * x; }));
    expect_close(channels.mean_magnitude, rows.of(site, [](double x) { return std::abs(x); }));
    expect_close(channels.largest, rows.largest(site));
    ASSERT_EQ(channels.sample.rows(), 6);  // of 39 rows every seventh, from the first
    for (const int64_t sampled : {0, 1, 2, 5}) {
      EXPECT_TRUE(std::ranges::equal(channels.sample.row(sampled), rows.row(site, 7 * sampled)));
    }
  }
  expect_close(statistics[1][Space::kKey].mean, rows.mean(Space::kKey));
  expect_close(statistics[1][Space::kValue].mean, rows.mean(Space::kValue));
}

// Balancing and centring, alone and with every rotation, keep the function; so they do where the
// statistics are of another text.
TEST(QuantizeModel, BalancingAndCentringAreExact) {
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    const Model model = testing::random_model(testing::config_json({{"model_type", family}}), 11);
    const std::vector<Token> tokens = testing::random_tokens(40, 96, 12);
    const Matrix before = testing::logits_of(model, tokens);
    for (const char* base : {"quarot", "balanced"}) {
      for (const char* rotations : {"none", "all", "R1", "R2", "R3", "R4", "heads"}) {
        for (const Centering center :
             {Centering::kNone, Centering::kKeys, Centering::kKeysAndValues}) {
          Recipe recipe = value_of(recipe_by_name(base));
          testing::expect_ok(set_rotations(rotations, recipe.transforms));
          recipe.weights.bits = kFloatBits;
          recipe.scaling.method = Scaling::kBalance;
          recipe.center = center;
          const Model moved =
              testing::quantized(recipe, model, {testing::random_tokens(30, 96, 13)});
          EXPECT_EQ(moved.layers[0].key_center.empty(), center == Centering::kNone);
          EXPECT_LT(testing::relative_error(testing::logits_of(moved, tokens), before), 5e-6)
              << family << " " << base << " " << rotations << " " << static_cast<int>(center);
        }
      }
    }
  }
}

TEST(QuantizeModel, CentringTakesTheMeanFromTheCache) {
  const Model model = testing::random_model(testing::config_json({{"model_type", "qwen2"}}), 1);
  const std::vector<Token> tokens = testing::random_tokens(60, 96, 2);
  Recipe recipe = value_of(recipe_by_name("balanced"));
  recipe.weights.bits = kFloatBits;
  const Model moved = testing::quantized(recipe, model, {tokens});
  SimulatedBackend backend(moved, {});
  Rows rows;
  backend.set_observer(&rows);
  forward(backend, {tokens, {{backend.add_sequence(), 0, 60, 0}}});
  const auto expect_mean = [&](Space space, const std::vector<float>& center) {
    const std::vector<double> mean = rows.mean(space);
    for (size_t i = 0; i < center.size(); ++i) EXPECT_NEAR(center[i], mean[i], 1e-5);
  };
  expect_mean(Space::kKey, moved.layers[1].key_center);
  expect_mean(Space::kValue, moved.layers[1].value_center);
}

// What one space of one layer carries, of all windows.
class InputHessian final : public SiteObserver {
 public:
  InputHessian(int64_t layer, Space space, int64_t width)
      : hessian(width), layer_(layer), space_(space) {}
  void observe(int64_t layer, Space space, ConstMatrixRef rows) override {
    if (layer == layer_ && space == space_) hessian.add(rows);
  }
  Hessian hessian;

 private:
  int64_t layer_;
  Space space_;
};

// Every linear is rounded under what the whole model, rounded up to there, feeds it. Here by whole
// forward passes over a model in memory; to the integer.
TEST(QuantizeModel, GptqSeesWhatWasRoundedBefore) {
  const Model model = testing::random_model(testing::config_json({{"model_type", "qwen2"}}), 3);
  const std::vector<std::vector<Token>> windows = {testing::random_tokens(40, 96, 1),
                                                   testing::random_tokens(90, 96, 2)};
  for (const char* name : {"quarot", "balanced"}) {
    for (const bool quantized_inputs : {false, true}) {
      SCOPED_TRACE(std::string(name) + (quantized_inputs ? " with quantised inputs" : ""));
      Recipe recipe = value_of(recipe_by_name(name));
      recipe.weight_method = WeightMethod::kGptq;
      recipe.gptq_quantized_inputs = quantized_inputs;
      const Model found = testing::quantized(recipe, model, windows);
      Recipe unrounded = recipe;
      unrounded.weights.bits = kFloatBits;
      Model reference = testing::quantized(unrounded, model, windows);
      for (int64_t l = 0; l < model.config.layers; ++l) {
        for (const Space site : kSites) {
          InputHessian input(l, site, model.config.width(site));
          SimulatedBackend backend(reference, quantized_inputs ? recipe.precision : Precision());
          backend.set_observer(&input);
          for (const std::vector<Token>& window : windows) {
            const auto size = static_cast<int64_t>(window.size());
            forward(backend, {window, {{backend.add_sequence(), 0, size, 0}}});
          }
          for (const Role role : kRoles) {
            if (spaces_of(role).input != site) continue;
            Matrix& weight = reference.layers[static_cast<size_t>(l)][role].weight;
            const auto expected =
                value_of(gptq(recipe.weights, recipe.gptq, weight, input.hessian));
            const auto& rounded = found.layers[static_cast<size_t>(l)][role].quantized;
            ASSERT_TRUE(rounded.has_value());
            EXPECT_TRUE(std::ranges::equal(rounded->values.elements(), expected.values.elements()))
                << linear_name(l, role);
            weight = expected.dequantize();
          }
        }
      }
    }
  }
}

TEST(QuantizeModel, RefusesARecipeThatDoesNotFit) {
  NoProgress progress;
  const Model model = testing::random_model(testing::config_json(), 1);
  Recipe recipe = value_of(recipe_by_name("quarot"));
  recipe.weights.group = 7;
  const auto pipeline = LayerPipeline::create(recipe, model.config, progress);
  ASSERT_FALSE(pipeline.ok());
  EXPECT_EQ(pipeline.error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quarot
