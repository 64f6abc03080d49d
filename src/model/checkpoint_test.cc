#include "model/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "formats/safetensors.h"
#include "support/checkpoint.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using testing::data_folder;
using testing::value_of;

class CheckpointFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("quarot-checkpoint-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void expect_error(const fs::path& path, ErrorCode code, const std::string& message) {
    const auto checkpoint = open_checkpoint(path);
    ASSERT_FALSE(checkpoint.ok()) << path;
    EXPECT_EQ(checkpoint.error().code(), code) << checkpoint.error().message();
    EXPECT_NE(checkpoint.error().message().find(message), std::string::npos)
        << checkpoint.error().message();
  }

  fs::path folder_;
};

TEST_F(CheckpointFiles, WhatIsNoModelIsNamed) {
  expect_error(folder_ / "nothing", ErrorCode::kNotFound, "no such file");
  expect_error(folder_ / std::string(300, 'x'), ErrorCode::kNotFound, "no such file");
  expect_error(folder_, ErrorCode::kNotFound, "no config.json");
  std::ofstream(folder_ / "notes.txt") << "hello";
  expect_error(folder_ / "notes.txt", ErrorCode::kUnsupported, "expected a Hugging Face folder");
  std::ofstream(folder_ / "model.gguf") << "GGU";
  expect_error(folder_ / "model.gguf", ErrorCode::kCorrupt, "model.gguf");
  std::ofstream(folder_ / "model.bin") << "x";
  expect_error(folder_ / "model.bin", ErrorCode::kCorrupt, "model.bin");
  std::ofstream(folder_ / "config.json") << "{\"model_type\": ";
  expect_error(folder_, ErrorCode::kCorrupt, "config.json");
}

TEST_F(CheckpointFiles, TokenizerFilesAreCopiedIfJsonCanNameThem) {
  QUAROT_NEEDS(data_folder());
  const fs::path tiny = *data_folder() / "models" / "tiny" / "llama";
  for (const char* name : {"config.json", "model.safetensors"})
    fs::create_symlink(tiny / name, folder_ / name);
  for (const char* name : {"tokenizer.model", "\xff.model", "notes.txt"})
    std::ofstream(folder_ / name) << "x";
  fs::create_directory(folder_ / "copy");
  testing::expect_ok(value_of(open_checkpoint(folder_))->save_tokenizer(folder_ / "copy"));
  std::vector<fs::path> copied;
  for (const auto& entry : fs::directory_iterator(folder_ / "copy"))
    copied.push_back(entry.path().filename());
  EXPECT_EQ(copied, std::vector<fs::path>{"tokenizer.model"});
}

TEST_F(CheckpointFiles, AFolderOpensByAnyOfItsFiles) {
  QUAROT_NEEDS(data_folder());
  const fs::path tiny = *data_folder() / "models" / "tiny" / "llama";
  for (const fs::path& path : {tiny, tiny / "config.json", tiny / "model.safetensors"}) {
    const auto checkpoint = value_of(open_checkpoint(path));
    EXPECT_EQ(checkpoint->path(), tiny);
    EXPECT_EQ(checkpoint->format(), "safetensors");
    EXPECT_FALSE(checkpoint->manifest().has_value());
    EXPECT_NE(checkpoint->tensors().find("model.norm.weight"), nullptr);
  }
}

TEST_F(CheckpointFiles, TensorsThatDoNotFitTheConfigAreNamed) {
  QUAROT_NEEDS(data_folder());
  const fs::path tiny = *data_folder() / "models" / "tiny" / "qwen2";
  fs::copy_file(tiny / "model.safetensors", folder_ / "model.safetensors");
  const nlohmann::json config = testing::read_json(tiny / "config.json");
  const auto expect_load_error = [&](const char* key, const nlohmann::json& value,
                                     const std::string& message) {
    nlohmann::json changed = config;
    changed[key] = value;
    std::ofstream(folder_ / "config.json") << changed;
    const auto checkpoint = value_of(open_checkpoint(folder_));
    const auto model = load_model(*checkpoint);
    ASSERT_FALSE(model.ok()) << key;
    EXPECT_EQ(model.error().code(), ErrorCode::kCorrupt);
    EXPECT_NE(model.error().message().find(message), std::string::npos) << model.error().message();
  };
  expect_load_error("vocab_size", 321, "model.embed_tokens.weight has shape [320, 112]");
  expect_load_error("intermediate_size", 100, "mlp.gate_proj.weight");
  expect_load_error("num_hidden_layers", 3, "model.layers.2.self_attn.q_proj.weight is missing");
  expect_load_error("tie_word_embeddings", false, "lm_head.weight is missing");
  expect_load_error("model_type", "qwen3", "q_norm.weight is missing");
}

// One such number would make all logits so.
TEST_F(CheckpointFiles, NumbersThatAreNoneAreNamed) {
  nlohmann::json config = {
      {"model_type", "llama"},         {"hidden_size", 32},        {"intermediate_size", 32},
      {"num_hidden_layers", 1},        {"num_attention_heads", 2}, {"vocab_size", 16},
      {"max_position_embeddings", 16}, {"rms_norm_eps", 1e-5},     {"tie_word_embeddings", true}};
  testing::write_random_checkpoint(folder_, config);
  const auto write_tensors = [&](float gain, float scale) {
    const std::string norm = "model.layers.0.input_layernorm.weight";
    const std::string query = "model.layers.0.self_attn.q_proj.weight";
    const auto old = value_of(open_safetensors(folder_));
    std::vector<TensorPlan> plan;
    for (const TensorInfo& info : old->tensors()) {
      if (info.name != norm && info.name != query)
        plan.push_back({info.name, Dtype::kBF16, info.shape});
    }
    const size_t kept = plan.size();
    plan.push_back({norm, Dtype::kF32, {32}});
    plan.push_back({query + "_packed", Dtype::kI32, {32, 4}});
    plan.push_back({query + "_scale", Dtype::kF32, {32, 1}});
    plan.push_back({query + "_shape", Dtype::kI64, {2}});
    SafetensorsWriter writer =
        value_of(SafetensorsWriter::create(folder_ / "all.safetensors", plan, {}));
    for (size_t i = 0; i < kept; ++i)
      testing::expect_ok(writer.append(plan[i].name, value_of(old->raw(plan[i].name)).bytes));
    const std::vector<float> gains(32, gain);
    const std::vector<int32_t> words(32 * 4, 0);
    const std::vector<float> scales(32, scale);
    const int64_t shape[] = {32, 32};
    testing::expect_ok(writer.append(norm, std::as_bytes(std::span(gains))));
    testing::expect_ok(writer.append(query + "_packed", std::as_bytes(std::span(words))));
    testing::expect_ok(writer.append(query + "_scale", std::as_bytes(std::span(scales))));
    testing::expect_ok(writer.append(query + "_shape", std::as_bytes(std::span(shape))));
    testing::expect_ok(writer.commit());
  };
  const auto load = [&](float gain, float scale) {
    write_tensors(gain, scale);
    const auto tensors = value_of(open_safetensors(folder_ / "all.safetensors"));
    const auto layer = load_layer(*tensors, value_of(parse_config(config, "test")), 0);
    return layer.ok() ? std::string() : layer.error().message();
  };
  EXPECT_EQ(load(-1, 0.1F), "");
  for (const float gain : {NAN, INFINITY, -INFINITY})
    EXPECT_NE(load(gain, 0.1F).find("input_layernorm.weight has a value of"), std::string::npos);
  for (const float scale : {NAN, INFINITY, 0.0F, -0.1F})
    EXPECT_NE(load(1, scale).find("q_proj.weight_scale has a value of"), std::string::npos);
}

TEST_F(CheckpointFiles, Llama2cWithoutTokenizerSaysWhatItLooksFor) {
  QUAROT_NEEDS(data_folder());
  fs::copy_file(*data_folder() / "models" / "stories260k" / "stories260K.bin",
                folder_ / "model.bin");
  const auto checkpoint = value_of(open_checkpoint(folder_ / "model.bin"));
  const auto tokenizer = checkpoint->open_tokenizer();
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.error().code(), ErrorCode::kNotFound);
  EXPECT_NE(tokenizer.error().message().find("tok512.bin"), std::string::npos);
}

}  // namespace
}  // namespace quarot
