// The float forward pass against transformers: tiny models of every family, SmolLM2.
#include <gtest/gtest.h>

#include "runtime/generate.h"
#include "support/model.h"

namespace quarot {
namespace {

using testing::data_folder;
using testing::smollm2;
using testing::value_of;

// The largest difference over the largest logit.
double worst(std::span<const float> got, const std::vector<float>& expected) {
  double difference = 0;
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::abs(double{got[i]} - expected[i]));
    largest = std::max(largest, std::abs(double{expected[i]}));
  }
  return difference / largest;
}

class TinyModel : public ::testing::TestWithParam<const char*> {};

TEST_P(TinyModel, LogitsEqualTransformers) {
  QUAROT_NEEDS(data_folder());
  const auto folder = *data_folder() / "models" / "tiny" / GetParam();
  const Model model = testing::load(folder);
  const nlohmann::json expected = testing::read_json(folder / "expected.json");
  const auto ids = expected["ids"].get<std::vector<Token>>();
  const Matrix logits = testing::logits_of(model, ids);
  EXPECT_LT(worst(logits.row(logits.rows() - 1), expected["logits_last"].get<std::vector<float>>()),
            1e-4);
  EXPECT_LT(worst(logits.row(19), expected["logits_mid"].get<std::vector<float>>()), 1e-4);
}

TEST_P(TinyModel, ChunksAndBatchesDoNotChangeTheLogits) {
  QUAROT_NEEDS(data_folder());
  const auto folder = *data_folder() / "models" / "tiny" / GetParam();
  const Model model = testing::load(folder);
  const auto ids = testing::read_json(folder / "expected.json")["ids"].get<std::vector<Token>>();
  const Matrix whole = testing::logits_of(model, ids);
  // Two sequences, fed in pieces, one beside the other.
  SimulatedBackend backend(model, {});
  const int a = backend.add_sequence();
  const int b = backend.add_sequence();
  forward(backend, {{ids.begin(), ids.begin() + 7}, {{a, 0, 7, 0}}});
  std::vector<Token> mixed(ids.begin() + 7, ids.begin() + 30);
  mixed.insert(mixed.end(), ids.begin(), ids.begin() + 20);
  forward(backend, {mixed, {{a, 0, 23, 7}, {b, 23, 20, 0}}});
  Matrix logits(1, model.config.vocab);
  for (const auto& [row, position] : {std::pair{22, 29}, {42, 19}}) {
    backend.logits(row, 1, logits);
    const auto expected = whole.row(position);
    EXPECT_LT(worst(logits.row(0), {expected.begin(), expected.end()}), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TinyModel, ::testing::ValuesIn(testing::kTinyModels),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(UnsupportedFamily, IsNamedWithThoseSupported) {
  QUAROT_NEEDS(data_folder());
  const auto checkpoint = value_of(open_checkpoint(*data_folder() / "models" / "tiny" / "opt"));
  const auto config = parse_config(checkpoint->config(), "here");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(config.error().message().find("\"opt\""), std::string::npos);
  EXPECT_NE(config.error().message().find("llama, mistral, qwen2, qwen3, phi3"), std::string::npos);
}

TEST(SmolLM2, LogitsAndGreedyContinuationsEqualTransformers) {
  QUAROT_NEEDS(data_folder());
  QUAROT_NEEDS(smollm2());
  const auto checkpoint = value_of(open_checkpoint(*smollm2()));
  const auto tokenizer = value_of(checkpoint->open_tokenizer());
  const Model model = value_of(load_model(*checkpoint));
  const nlohmann::json golden =
      testing::read_json(*data_folder() / "golden" / "smollm2.logits.json");
  NoProgress progress;
  for (const auto& [prompt, expected] : golden.items()) {
    const auto ids = expected["ids"].get<std::vector<Token>>();
    EXPECT_EQ(tokenizer->encode(prompt), ids);
    const Matrix logits = testing::logits_of(model, ids);
    const auto top = expected["top_ids"].get<std::vector<size_t>>();
    const auto values = expected["top_logits"].get<std::vector<float>>();
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_NEAR(logits.row(logits.rows() - 1)[top[i]], values[i], 1e-3)
          << prompt << ", rank " << i;
    }
    SimulatedBackend backend(model, {});
    Session session(backend, *tokenizer);
    GenerationOptions options;
    options.max_tokens = 24;
    options.ignore_end = true;
    const auto generation = value_of(session.generate(
        ids, options, [](std::string_view) {}, progress));
    EXPECT_EQ(generation.tokens, expected["greedy24"].get<std::vector<Token>>()) << prompt;
  }
}

TEST(Stories260K, TellsAStory) {
  QUAROT_NEEDS(data_folder());
  const auto checkpoint =
      value_of(open_checkpoint(*data_folder() / "models" / "stories260k" / "stories260K.bin"));
  const auto tokenizer = value_of(checkpoint->open_tokenizer());
  const Model model = value_of(load_model(*checkpoint));
  SimulatedBackend backend(model, {});
  Session session(backend, *tokenizer);
  NoProgress progress;
  std::vector<Token> prompt = tokenizer->encode("Once upon a time");
  prompt.insert(prompt.begin(), 1);
  GenerationOptions options;
  options.max_tokens = 60;
  const auto generation = value_of(session.generate(
      prompt, options, [](std::string_view) {}, progress));
  // What llama2.c's run prints for this checkpoint at temperature 0.
  EXPECT_TRUE(generation.text.starts_with(
      ", there was a little girl named Lily. She loved to play outside in the park."))
      << generation.text;
}

}  // namespace
}  // namespace quarot
