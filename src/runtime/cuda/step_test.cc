// Decoding one sequence in one launch (kernels/cuda/step) against the same token in a batch of two,
// which runs kernel by kernel: the same bits, for every shape the step kernel says it takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "model/synthetic.h"
#include "runtime/cuda/packed_cuda_backend.h"
#include "runtime/make_backend.h"

namespace quarot {
namespace {

constexpr int64_t kPrompt = 37;
constexpr int64_t kSteps = 4;

struct Shape {
  const char* name;
  const char* config;
  bool norm_output = false;
  bool rotated = true;
  int activation_bits = 4;
  int cache_bits = 4;
  bool biases = false;
  int64_t prompt = kPrompt;  // 0: so long that half the steps are beyond what one launch takes
  bool mixed = false;        // sites of 8 bits and of 5 among the others
};

constexpr char kGrouped[] = R"({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1536,
    "vocab_size": 259, "rms_norm_eps": 1e-5})";
constexpr char kMany[] = R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 2,
    "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008,
    "vocab_size": 263, "rms_norm_eps": 1e-5})";
constexpr char kWide[] = R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 2,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 257, "rms_norm_eps": 1e-5})";
constexpr char kNormed[] = R"({"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 1792, "vocab_size": 300, "rms_norm_eps": 1e-6})";
constexpr char kWindowed[] = R"({"model_type": "mistral", "hidden_size": 512,
    "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 1024, "vocab_size": 300, "rms_norm_eps": 1e-6, "sliding_window": 100})";
constexpr char kNarrow[] = R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 192,
    "vocab_size": 100, "rms_norm_eps": 1e-5})";
constexpr char kPower[] = R"({"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 3,
    "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 8192,
    "vocab_size": 261, "rms_norm_eps": 1e-5})";
constexpr char kUneven[] = R"({"model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 2,
    "num_attention_heads": 40, "num_key_value_heads": 40, "intermediate_size": 13824,
    "vocab_size": 263, "rms_norm_eps": 1e-5})";

constexpr char kHeads[] = R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 2,
    "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 256,
    "vocab_size": 261, "rms_norm_eps": 1e-5, "max_position_embeddings": 16384})";
constexpr char kKnownFactors[] = R"({"model_type": "llama", "hidden_size": 2048,
    "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 4,
    "intermediate_size": 5632, "vocab_size": 263, "rms_norm_eps": 1e-5})";

constexpr Shape kShapes[] = {
    {"grouped", kGrouped},
    {"grouped_balanced", kGrouped, true},
    {"grouped_a8_kv8", kGrouped, false, true, 8, 8},
    {"grouped_kv2", kGrouped, false, true, 4, 2},
    {"grouped_kv3", kGrouped, true, true, 8, 3},
    {"grouped_plain", kGrouped, false, false},
    {"grouped_biases", kGrouped, true, true, 4, 4, true},
    {"grouped_long", kGrouped, false, true, 4, 4, false, 1500},
    {"grouped_mixed", kGrouped, true, true, 4, 4, false, kPrompt, true},
    {"many", kMany},
    {"many_mixed", kMany, true, true, 4, 4, true, kPrompt, true},
    {"many_balanced", kMany, true, true, 8, 4, true},
    {"many_long", kMany, false, true, 4, 4, false, 1100},
    {"wide", kWide},
    {"normed", kNormed, true},
    {"windowed", kWindowed, false, true, 4, 4, false, 1300},
    {"narrow", kNarrow},
    {"beyond", kHeads, false, true, 4, 4, false, 0},
    {"power_of_two_balanced", kPower, true},
    {"uneven_balanced", kUneven, true},
    {"known_factors", kKnownFactors},
    {"known_factors_balanced", kKnownFactors, true, true, 8, 4, true},
};

void randomize(Random& random, std::vector<float>& values, int64_t count, float center) {
  values.resize(static_cast<size_t>(count));
  for (float& x : values) x = center + static_cast<float>(random.below(256)) / 512 - 0.25F;
}

Model model_of(const Shape& shape) {
  const ModelConfig config =
      *parse_config(nlohmann::json::parse(shape.config), "a shape of the step test");
  TransformSpec spec;
  spec.norm_output = shape.norm_output;
  spec.heads = spec.query_key = spec.ffn = shape.rotated;
  Random random(7);
  Model model = synthetic_model(config, spec);
  const Layer layer = model.layers.front();
  model.layers.resize(static_cast<size_t>(config.layers), layer);
  for (Layer& each : model.layers) {
    for (Linear& linear : each.linears) {
      if (!linear.quantized) continue;
      for (float& scale : linear.quantized->scales.elements()) {
        scale *= 0.5F + static_cast<float>(random.below(256)) / 256;
      }
      if (shape.biases) {
        randomize(random, linear.bias, linear.quantized->values.rows(), 0);
      }
    }
    randomize(random, each.attention_norm, config.hidden, 1);
    randomize(random, each.ffn_norm, config.hidden, 1);
    if (config.query_key_norm) {
      randomize(random, each.query_norm, config.head_dim, 1);
      randomize(random, each.key_norm, config.head_dim, 1);
    }
    if (shape.biases) {
      randomize(random, each.key_center, config.kv_heads * config.head_dim, 0);
      randomize(random, each.value_center, config.kv_heads * config.head_dim, 0);
    }
  }
  if (shape.mixed) {
    model.layers.front().activation_bits = {0, 8, 0, 5};
    model.layers.back().activation_bits = {8, 0, 8, 8};
  }
  return model;
}

class CudaStep : public ::testing::TestWithParam<Shape> {};

TEST_P(CudaStep, ChangesNoBit) {
  if (const Status gpu = check_device(Device::kCuda); !gpu.ok()) {
    GTEST_SKIP() << gpu.error().message();
  }
  const Shape& shape = GetParam();
  Precision precision;
  precision.activations.bits = shape.activation_bits;
  precision.keys.bits = precision.values.bits = shape.cache_bits;
  auto made = cuda::PackedCudaBackend::create(model_of(shape), precision, {});
  ASSERT_TRUE(made.ok()) << made.error().message();
  cuda::PackedCudaBackend& backend = **made;
  const int64_t vocab = backend.config().vocab;
  const auto token = [&](int64_t i) { return static_cast<Token>((7 * i + 3) % vocab); };
  const int first = backend.add_sequence();
  forward(backend, {{token(0)}, {{first, 0, 1, 0}}});
  const int64_t bound = backend.step_tokens();
  EXPECT_GT(bound, 0) << "the step kernel does not take this shape";
  backend.drop_sequence(first);
  const int64_t length = shape.prompt > 0 ? shape.prompt : bound - kSteps / 2;
  std::vector<Token> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(token(i));
  std::vector<Matrix> runs;
  for (const bool crowded : {false, true}) {
    const int sequence = backend.add_sequence();
    const int other = backend.add_sequence();
    forward(backend, {prompt, {{sequence, 0, length, 0}}});
    forward(backend, {{prompt.front()}, {{other, 0, 1, 0}}});
    Matrix& steps = runs.emplace_back(kSteps, vocab);
    for (int64_t i = 0; i < kSteps; ++i) {
      const int64_t at = length + i;
      if (crowded) {
        forward(backend, {{token(at), token(i)}, {{sequence, 0, 1, at}, {other, 1, 1, 1 + i}}});
      } else {
        forward(backend, {{token(at)}, {{sequence, 0, 1, at}}});
      }
      backend.logits(0, 1, steps.view().rows(i, 1));
    }
    backend.drop_sequence(sequence);
    backend.drop_sequence(other);
  }
  ASSERT_TRUE(backend.status().ok()) << backend.status().error().message();
  const auto largest = std::ranges::max(runs[0].elements());
  EXPECT_GT(largest, 0);
  EXPECT_TRUE(std::ranges::equal(runs[0].elements(), runs[1].elements()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaStep, ::testing::ValuesIn(kShapes),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace quarot
