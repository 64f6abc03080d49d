// Calibration on the GPU against calibration on the CPU, and the quantisers that only simulated
// execution has. Where all is float the two differ by round-off; where activations are quantised a
// value on a rounding boundary falls either way, so weights are compared by their errors.
#include <gtest/gtest.h>

#include "recipe/calibration.h"
#include "runtime/make_backend.h"
#include "support/quantized.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::expect_ok;
using testing::relative_error;
using testing::value_of;

using Windows = std::vector<std::vector<Token>>;

class CudaCalibration : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const Status gpu = check_device(Device::kCuda); !gpu.ok()) {
      GTEST_SKIP() << gpu.error().message();
    }
    model_ = testing::random_model(testing::config_json({{"model_type", GetParam()}}), 3);
  }

  std::unique_ptr<LayerStream> stream(Device device) {
    auto stream = value_of(make_layer_stream(model_.config, {}, {}, device, progress_));
    expect_ok(stream->reserve(240));
    for (const std::vector<Token>& window : windows_)
      expect_ok(stream->add_window(window, embedding_rows(model_.embedding, window)));
    return stream;
  }

  std::vector<LayerReport> reports(const Recipe& recipe, Device device) {
    Model model = model_;
    model.layers.clear();
    const auto floats = [&] {
      return NextLayer(
          [&, index = size_t{0}]() mutable { return Result<Layer>(model_.layers[index++]); });
    };
    const auto embed = [&](std::span<const Token> tokens) {
      return Result<Matrix>(embedding_rows(model.embedding, tokens));
    };
    const auto found = value_of(
        residual_basis(recipe, model.config, windows_, embed, floats(), progress_, device));
    const FinishedLayers layers =
        value_of(quantize_model(recipe, windows_, floats(), model, progress_, device, found));
    expect_ok(complete(model, layers.next));
    return *layers.reports;
  }

  Matrix logits(const Model& model, const Precision& precision, Device device, int64_t chunk) {
    const auto backend = value_of(make_backend(model, precision, Execution::kSimulated, device));
    const std::vector<Token>& tokens = long_text_;
    const int sequence = backend->add_sequence();
    Matrix out(std::ssize(tokens), model.config.vocab);
    for (int64_t at = 0; at < std::ssize(tokens); at += chunk) {
      const int64_t count = std::min(chunk, std::ssize(tokens) - at);
      forward(*backend,
              {{tokens.begin() + at, tokens.begin() + at + count}, {{sequence, 0, count, at}}});
      backend->logits(0, count, out.view().rows(at, count));
    }
    expect_ok(backend->status());
    return out;
  }

  NoProgress progress_;
  Model model_;
  Windows windows_ = {testing::random_tokens(150, 96, 1), testing::random_tokens(90, 96, 2)};
  std::vector<Token> long_text_ = testing::random_tokens(300, 96, 3);
};

// Layer after layer, so that what the streams carry is compared too. The rounded streams' weights
// are 4-bit ones: what they lack is a tenth of what they carry.
TEST_P(CudaCalibration, MomentsAgreeToRoundOff) {
  struct Streams {
    std::unique_ptr<LayerStream> aim, rounded;
  };
  std::vector<Streams> devices;
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    devices.push_back({stream(device), stream(device)});
  }
  Basis basis;
  basis.rotate(Orthogonal::randomised_hadamard(model_.config.hidden, 5));
  for (int64_t index = 0; index < model_.config.layers; ++index) {
    std::vector<std::vector<StreamMoments>> moments;
    for (Streams& streams : devices) {
      streams.aim->put_layer(index, model_.layers[static_cast<size_t>(index)]);
      Layer& layer = streams.rounded->put_layer(index, model_.layers[static_cast<size_t>(index)]);
      for (const Role role : kRoles) {
        layer[role].weight = round_to_nearest({.bits = 4}, layer[role].weight).dequantize();
        streams.rounded->weights_changed(spaces_of(role).input);
      }
      const ResidualTarget target{streams.aim.get(), basis};
      const auto moments_at = [&](Space site, LayerStream::Step step,
                                  const ResidualTarget* to = nullptr) {
        moments.back().push_back(value_of(streams.rounded->moments(site, step, to)));
      };
      moments.emplace_back();
      moments_at(Space::kAttentionInput,
                 [](Backend& b) { b.normalize(0, Space::kAttentionInput); });
      expect_ok(streams.aim->run_layer());
      moments_at(
          Space::kAttentionOutput,
          [](Backend& b) {
            b.normalize(0, Space::kAttentionInput);
            b.project_qkv(0);
            b.append_cache(0);
            b.attend(0);
            b.mix_heads(0);
          },
          &target);
      moments_at(Space::kFfnInput, [](Backend& b) {
        b.mix_heads(0);
        b.project_output(0);
        b.normalize(0, Space::kFfnInput);
      });
      moments_at(
          Space::kFfnHidden,
          [](Backend& b) {
            b.normalize(0, Space::kFfnInput);
            b.project_gate_up(0);
            b.gate(0);
          },
          &target);
    }
    for (size_t i = 0; i < kSites.size(); ++i) {
      const StreamMoments& cpu = moments[0][i];
      const StreamMoments& gpu = moments[1][i];
      EXPECT_EQ(gpu.inputs.tokens(), 240);
      EXPECT_LT(relative_error(gpu.inputs.matrix(), cpu.inputs.matrix()), 1e-5) << i;
      ASSERT_EQ(gpu.lacking.has_value(), cpu.lacking.has_value());
      if (!cpu.lacking) continue;
      EXPECT_LT(relative_error(gpu.lacking->matrix(), cpu.lacking->matrix()), 1e-4) << i;
    }
  }
}

TEST_P(CudaCalibration, StatisticsAgreeToRoundOff) {
  Layer layer = model_.layers[0];
  layer.key_center.assign(static_cast<size_t>(model_.config.width(Space::kKey)), 0.5F);
  std::vector<LayerStatistics> statistics;
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    const auto tokens = stream(device);
    tokens->put_layer(0, layer);
    statistics.push_back(value_of(collect_statistics(*tokens, 7)));
  }
  for (const Space space : {Space::kAttentionInput, Space::kKey, Space::kValue,
                            Space::kAttentionOutput, Space::kFfnInput, Space::kFfnHidden}) {
    const ChannelStatistics& cpu = statistics[0][space];
    const ChannelStatistics& gpu = statistics[1][space];
    ASSERT_EQ(gpu.mean.size(), cpu.mean.size());
    for (size_t c = 0; c < cpu.mean.size(); ++c) {
      EXPECT_NEAR(gpu.mean[c], cpu.mean[c], 1e-4 * cpu.largest[c]);
      EXPECT_NEAR(gpu.mean_square[c], cpu.mean_square[c], 1e-4 * cpu.mean_square[c]);
    }
    ASSERT_EQ(gpu.sample.rows(), cpu.sample.rows());
    if (cpu.sample.rows() > 0) {
      EXPECT_LT(relative_error(gpu.sample, cpu.sample), 1e-5);
    }
  }
}

TEST_P(CudaCalibration, WeightsAreRoundedAsWell) {
  Recipe paper = value_of(recipe_by_name("quarot"));
  paper.weight_method = WeightMethod::kGptq;
  Recipe quantised = paper;
  quantised.gptq_quantized_inputs = true;
  std::vector<Recipe> recipes = {paper, quantised};
  for (const char* name :
       {"balanced-gptq", "smoothquant-searched", "atom", "omniquant", "quip", "principal"}) {
    recipes.push_back(fitted(value_of(recipe_by_name(name)), model_.config));
  }
  for (const Recipe& recipe : recipes) {
    const auto cpu = reports(recipe, Device::kCpu);
    const auto gpu = reports(recipe, Device::kCuda);
    const double part = recipe.gptq_quantized_inputs ? 0.15 : 0.03;
    for (size_t l = 0; l < cpu.size(); ++l) {
      for (const Role role : kRoles) {
        const RoundingError& expected = cpu[l].errors[static_cast<size_t>(role)];
        const RoundingError& found = gpu[l].errors[static_cast<size_t>(role)];
        EXPECT_NEAR(found.weight, expected.weight, part * expected.weight)
            << recipe.name << ", " << linear_name(static_cast<int64_t>(l), role);
        EXPECT_NEAR(found.output, expected.output, part * expected.output)
            << recipe.name << ", " << linear_name(static_cast<int64_t>(l), role);
      }
    }
  }
}

// Kept channels by calibration and by threshold, pages by channel and before RoPE, half precision.
TEST_P(CudaCalibration, WhatIsOnlySimulatedAgrees) {
  std::vector<Recipe> recipes;
  for (const char* name : {"llm-int8", "quik", "atom", "kivi", "kvquant"}) {
    recipes.push_back(fitted(value_of(recipe_by_name(name)), model_.config));
  }
  recipes[0].precision.kept.threshold = 2;
  for (const char* name : {"quarot", "balanced"}) {
    recipes.push_back(value_of(recipe_by_name(name)));
    recipes.back().precision.half_online = true;
  }
  const Matrix original = logits(model_, {}, Device::kCpu, 300);
  for (const Recipe& recipe : recipes) {
    EXPECT_TRUE(recipe.precision.needs_simulation());
    const Model model = testing::quantized(recipe, model_, windows_);
    for (const int64_t chunk : {300, 70}) {
      const Matrix cpu = logits(model, recipe.precision, Device::kCpu, chunk);
      const Matrix gpu = logits(model, recipe.precision, Device::kCuda, chunk);
      EXPECT_LT(relative_error(gpu, cpu), 0.35 * relative_error(cpu, original)) << recipe.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CudaCalibration,
                         ::testing::Values("llama", "qwen2", "qwen3", "mistral"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace quarot
