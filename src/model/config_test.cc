#include "model/config.h"

#include <gtest/gtest.h>

#include "model/family.h"
#include "model/synthetic.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

using nlohmann::json;
using testing::config_json;
using testing::value_of;

ModelConfig parse(const json& changes) { return value_of(parse_config(config_json(changes), "c")); }

void expect_refused(const json& config, ErrorCode code, const std::string& message) {
  const auto parsed = parse_config(config, "config.json");
  ASSERT_FALSE(parsed.ok()) << config;
  EXPECT_EQ(parsed.error().code(), code) << parsed.error().message();
  EXPECT_TRUE(parsed.error().message().starts_with("config.json")) << parsed.error().message();
  EXPECT_NE(parsed.error().message().find(message), std::string::npos) << parsed.error().message();
}

TEST(Config, FillsInWhatIsLeftOut) {
  json sparse = config_json();
  for (const char* key : {"num_key_value_heads", "head_dim", "tie_word_embeddings"})
    sparse.erase(key);
  sparse["head_dim"] = nullptr;  // as transformers writes a default
  const ModelConfig c = value_of(parse_config(sparse, "c"));
  EXPECT_EQ(c.kv_heads, 6);
  EXPECT_EQ(c.head_dim, 8);  // 48 / 6
  EXPECT_EQ(c.group(), 1);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_EQ(c.rope.theta, 10000);
  EXPECT_EQ(c.sliding_windows, (std::vector<int64_t>{0, 0}));
}

TEST(Config, CountsParametersAndWidths) {
  const ModelConfig c = parse(json::object());
  EXPECT_EQ(c.width(Space::kQuery), 96);
  EXPECT_EQ(c.width(Space::kValue), 32);
  EXPECT_EQ(c.width(Space::kFfnHidden), 80);
  const int64_t layer = 48 * (96 + 32 + 32) + 96 * 48 + 3 * 48 * 80 + 2 * 48;
  EXPECT_EQ(c.parameters(), 2 * layer + 2 * 96 * 48 + 48);
  EXPECT_EQ(parse({{"tie_word_embeddings", true}}).parameters(), 2 * layer + 96 * 48 + 48);
}

TEST(Config, ANegativeEpsilonIsRefused) {
  expect_refused(config_json({{"rms_norm_eps", -1}}), ErrorCode::kCorrupt, "expected 0 or more");
}

TEST(Config, SlidingWindows) {
  using Windows = std::vector<int64_t>;
  EXPECT_EQ(parse({{"model_type", "mistral"}, {"sliding_window", 7}}).sliding_windows,
            (Windows{7, 7}));
  EXPECT_EQ(parse({{"model_type", "mistral"}, {"sliding_window", nullptr}}).sliding_windows,
            (Windows{0, 0}));
  const json qwen = {{"model_type", "qwen2"}, {"sliding_window", 7}, {"max_window_layers", 1}};
  EXPECT_EQ(parse(qwen).sliding_windows, (Windows{0, 0}));  // not without use_sliding_window
  json slides = qwen;
  slides["use_sliding_window"] = true;
  EXPECT_EQ(parse(slides).sliding_windows, (Windows{0, 7}));
  slides["max_window_layers"] = 28;
  EXPECT_EQ(parse(slides).sliding_windows, (Windows{0, 0}));
  expect_refused(config_json({{"model_type", "mistral"}, {"sliding_window", -1}}),
                 ErrorCode::kCorrupt, "sliding_window");
}

TEST(Config, HostileFilesGetOneError) {
  expect_refused(json::array(), ErrorCode::kCorrupt, "JSON object");
  expect_refused(json::object(), ErrorCode::kCorrupt, "\"model_type\" is missing");
  expect_refused(config_json({{"model_type", 3}}), ErrorCode::kCorrupt, "expected a string");
  expect_refused(config_json({{"model_type", "bert"}}), ErrorCode::kUnsupported,
                 "llama, mistral, qwen2, qwen3, phi3");
  expect_refused(config_json({{"hidden_act", "gelu"}}), ErrorCode::kUnsupported, "\"gelu\"");
  expect_refused(config_json({{"num_key_value_heads", 4}}), ErrorCode::kCorrupt, "evenly");
  expect_refused(config_json({{"head_dim", 15}}), ErrorCode::kUnsupported, "even number");
  expect_refused(config_json({{"num_hidden_layers", 5000}}), ErrorCode::kCorrupt, "4096");
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "intermediate_size", "vocab_size", "max_position_embeddings"}) {
    for (const json& value :
         {json(0), json(-1), json(INT64_MAX), json(UINT64_MAX), json(1.5), json("8"), json(true)}) {
      expect_refused(config_json({{key, value}}), ErrorCode::kCorrupt, key);
    }
  }
  for (const char* key : {"hidden_size", "num_attention_heads", "head_dim", "intermediate_size"}) {
    for (const int64_t value : {1 << 21, 10007, 134217689}) {
      const json config = config_json({{key, value}, {"num_key_value_heads", 1}});
      expect_refused(config, ErrorCode::kUnsupported, key);
    }
  }
  expect_refused(config_json({{"num_attention_heads", 1 << 12}, {"head_dim", 1 << 12}}),
                 ErrorCode::kUnsupported, "num_attention_heads x head_dim");
  expect_refused(config_json({{"rope_scaling", 5}}), ErrorCode::kCorrupt, "rope_scaling");
  expect_refused(config_json({{"rope_theta", 0}}), ErrorCode::kCorrupt, "rope_theta");
  expect_refused(config_json({{"rope_scaling", {{"type", "dynamic"}}}}), ErrorCode::kUnsupported,
                 "llama3, yarn, longrope");
  expect_refused(config_json({{"rope_scaling", {{"type", "linear"}}}}), ErrorCode::kCorrupt,
                 "\"factor\" is missing");
  expect_refused(config_json({{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}}),
                 ErrorCode::kCorrupt, "above 0");
  expect_refused(
      config_json({{"rope_scaling",
                    {{"type", "longrope"}, {"short_factor", {1, 2}}, {"long_factor", {1, 2}}}}}),
      ErrorCode::kCorrupt, "expected 8");
}

void expect_frequencies(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-6 * expected[i]) << i;
}

// Constants: transformers 5's ROPE_INIT_FUNCTIONS in float32, for head_dim 16 and a context of
// 8192.
RopeConfig rope_of(const json& changes) {
  json config = config_json({{"max_position_embeddings", 8192}});
  config.update(changes);
  return value_of(parse_config(config, "c")).rope;
}

TEST(Rope, Llama3) {
  json scaling = {{"rope_type", "llama3"},
                  {"factor", 8.0},
                  {"low_freq_factor", 1.0},
                  {"high_freq_factor", 4.0},
                  {"original_max_position_embeddings", 1024}};
  const std::vector<double> expected = {1.0,
                                        0.193922758,
                                        0.0376060307,
                                        0.00131256948,
                                        0.000176776681,
                                        3.42810235e-05,
                                        6.64786967e-06,
                                        1.28917316e-06};
  // As transformers before 5 wrote it, and since.
  expect_frequencies(
      rope_of({{"rope_theta", 500000.0}, {"rope_scaling", scaling}}).inverse_frequency, expected);
  scaling["rope_theta"] = 500000.0;
  expect_frequencies(rope_of({{"rope_parameters", scaling}}).inverse_frequency, expected);
}

TEST(Rope, Linear) {
  expect_frequencies(
      rope_of({{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}}).inverse_frequency,
      {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
       0.000250000012, 7.90569466e-05});
}

TEST(Rope, Yarn) {
  const RopeConfig rope =
      rope_of({{"rope_scaling",
                {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 2048}}}});
  expect_frequencies(rope.inverse_frequency,
                     {1.0, 0.316227764, 0.100000001, 0.025693506, 0.00624999963, 0.00138349656,
                      0.000250000012, 7.90569466e-05});
  EXPECT_NEAR(rope.attention_factor, 1.138629436111989, 1e-12);
}

TEST(Rope, LongRope) {
  const json scaling = {{"rope_type", "longrope"},
                        {"short_factor", {1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7}},
                        {"long_factor", {2, 3, 4, 5, 6, 7, 8, 9}}};
  const RopeConfig rope =
      rope_of({{"original_max_position_embeddings", 2048}, {"rope_scaling", scaling}});
  expect_frequencies(rope.frequencies(100),
                     {1.0, 0.287479758, 0.0833333358, 0.0243252143, 0.00714285718, 0.00210818532,
                      0.000624999986, 0.000186016332});
  expect_frequencies(rope.frequencies(5000),
                     {0.5, 0.10540925, 0.0250000004, 0.00632455572, 0.00166666671, 0.000451753964,
                      0.000125000006, 3.51364179e-05});
  EXPECT_EQ(rope.frequencies(2048), rope.frequencies(100));
  EXPECT_EQ(rope.frequencies(2049), rope.frequencies(5000));
  EXPECT_NEAR(rope.attention_factor, 1.087114613009218, 1e-12);
}

TEST(Rope, PartialAndFactors) {
  const RopeConfig half = rope_of({{"partial_rotary_factor", 0.5}});
  EXPECT_EQ(half.rotary_dim, 8);
  expect_frequencies(half.inverse_frequency, {1, 0.1, 0.01, 0.001});
  expect_frequencies(
      rope_of({{"rope_scaling", {{"factors", {1, 1, 2, 2, 4, 4, 8, 8}}}}}).inverse_frequency,
      {1, 0.316227766, 0.05, 0.0158113883, 0.0025, 0.000790569415, 0.000125, 0.0000395284708});
}

// As many parameters as their model cards count, but for Qwen's norms of heads.
TEST(PublishedConfig, HasTheModelsSizes) {
  const std::pair<const char*, int64_t> sizes[] = {{"llama-2-7b", 6738415616},
                                                   {"llama-2-13b", 13015864320},
                                                   {"llama-2-70b", 68976648192},
                                                   {"llama-3-8b", 8030261248},
                                                   {"qwen3-8b", 8190735360 - 36 * 2 * 128}};
  for (const auto& [name, parameters] : sizes) {
    const Result<ModelConfig> config = published_config(name);
    ASSERT_TRUE(config.ok()) << config.error().message();
    EXPECT_EQ(config->parameters(), parameters) << name;
  }
  const Result<ModelConfig> unknown = published_config("llama-9");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message().find("llama-2-7b, llama-2-13b"), std::string::npos);
}

TEST(SyntheticModel, HasTablesOfTheBitsAskedFor) {
  ModelConfig config = *published_config("llama-2-7b");
  config.vocab = 70, config.hidden = 64, config.ffn = 96, config.heads = config.kv_heads = 1;
  config.head_dim = 64;
  for (const bool tied : {false, true}) {
    config.tied_embeddings = tied;
    for (const TableBits bits : {TableBits(), {8, 8}, {4, 4}, {8, 4}, {kFloatBits, 8}}) {
      const Model model = synthetic_model(config, {}, bits);
      EXPECT_EQ(model.table_bits().embedding, bits.embedding);
      EXPECT_EQ(model.table_bits().head, bits.head);
      EXPECT_EQ(model.lm_head.empty(), tied && bits.embedding == bits.head);
      EXPECT_EQ(model.config.tied_embeddings, model.lm_head.empty());
      std::vector<float> row(64);
      model.head().read_row(69, row);
      for (const float w : row) EXPECT_LE(std::abs(w), 1);
    }
  }
}

}  // namespace
}  // namespace quarot
