// Checkpoints of random numbers, written to disk.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "support/synthetic.h"

namespace quarot::testing {

// A llama with tied embeddings as a Hugging Face folder, in bfloat16, a layer a shard, without a
// tokenizer. `more`: names of further tensors, of four zeros.
inline void write_random_checkpoint(const std::filesystem::path& folder,
                                    const nlohmann::json& config,
                                    const std::vector<std::string>& more = {}) {
  const ModelConfig c = value_of(parse_config(config, "test"));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config;
  nlohmann::json map = nlohmann::json::object();
  Random random(1);
  const auto write_shard = [&](const std::string& file, const std::vector<TensorPlan>& plan) {
    SafetensorsWriter writer = value_of(SafetensorsWriter::create(folder / file, plan, {}));
    for (const TensorPlan& tensor : plan) {
      const int64_t rows = tensor.shape.size() > 1 ? tensor.shape[0] : 1;
      std::vector<uint16_t> values(static_cast<size_t>(rows * tensor.shape.back()));
      for (uint16_t& value : values)
        value = float_to_bf16(static_cast<float>(rows > 1 ? random.uniform() - 0.5 : 1.0) / 8);
      expect_ok(writer.append(tensor.name, std::as_bytes(std::span(values))));
      map[tensor.name] = file;
    }
    expect_ok(writer.commit());
  };
  const auto plan = [](const std::string& name, std::vector<int64_t> shape) {
    return TensorPlan{name + ".weight", Dtype::kBF16, std::move(shape)};
  };
  std::vector<TensorPlan> outer = {plan("model.embed_tokens", {c.vocab, c.hidden}),
                                   plan("model.norm", {c.hidden})};
  for (const std::string& name : more) outer.push_back({name, Dtype::kBF16, {4}});
  write_shard("outer.safetensors", outer);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    std::vector<TensorPlan> tensors = {plan(prefix + "input_layernorm", {c.hidden}),
                                       plan(prefix + "post_attention_layernorm", {c.hidden})};
    for (const Role role : kRoles) {
      const RoleSpaces spaces = spaces_of(role);
      tensors.push_back(
          plan(linear_name(i, role), {c.width(spaces.output), c.width(spaces.input)}));
    }
    write_shard("layer-" + std::to_string(i) + ".safetensors", tensors);
  }
  std::ofstream(folder / "model.safetensors.index.json") << nlohmann::json{{"weight_map", map}};
}

}  // namespace quarot::testing
