#include "model/synthetic.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"

namespace quarot {

namespace {

// What their config.json on Hugging Face says, where it differs from what parse_config assumes.
struct Published {
  const char* name;
  const char* config;
};
constexpr Published kPublished[] = {
    {"llama-2-7b", R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008,
      "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})"},
    {"llama-2-13b", R"({"model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 40,
      "num_attention_heads": 40, "num_key_value_heads": 40, "intermediate_size": 13824,
      "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})"},
    {"llama-2-70b", R"({"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
      "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
      "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})"},
    {"llama-3-8b", R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
      "vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 500000.0,
      "rms_norm_eps": 1e-5})"},
    {"qwen3-8b", R"({"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
      "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 40960,
      "rope_theta": 1000000.0, "rms_norm_eps": 1e-6})"},
};

QuantizedWeight random_weight(Random& random, int64_t outputs, int64_t inputs) {
  QuantizedWeight weight;
  weight.quant.bits = 4;
  weight.values = BasicMatrix<int8_t>(outputs, inputs);
  for (int8_t& q : weight.values.elements()) q = static_cast<int8_t>(random.below(16)) - 8;
  weight.scales = Matrix(outputs, 1, 0.2F / std::sqrt(static_cast<float>(inputs)));
  return weight;
}

RowTable random_integers(Random& random, const ModelConfig& config, int bits) {
  RowTable table(config.vocab, config.hidden, bits == 4 ? Storage::kInt4 : Storage::kInt8);
  const Matrix scale(1, 1, std::ldexp(1.0F, 1 - bits));
  BasicMatrix<int32_t> words(1, table.row_words());
  for (int64_t row = 0; row < config.vocab; ++row) {
    for (int32_t& word : words.elements()) word = static_cast<int32_t>(random.next());
    table.set_rows(row, words.view(), scale);
  }
  return table;
}

RowTable random_table(Random& random, const ModelConfig& config, int bits) {
  if (bits != kFloatBits) return random_integers(random, config, bits);
  Matrix table(config.vocab, config.hidden);
  for (float& x : table.elements()) x = static_cast<float>(random.below(256)) / 128 - 1;
  return RowTable(table);
}

}  // namespace

Result<ModelConfig> published_config(const std::string& name) {
  for (const Published& published : kPublished) {
    if (name == published.name) return parse_config(nlohmann::json::parse(published.config), name);
  }
  return error(ErrorCode::kInvalidArgument, "no published shape \"{}\" is known; there are {}",
               name, published_names());
}

std::string published_names() {
  std::string names;
  for (const Published& published : kPublished) {
    names += (names.empty() ? "" : ", ") + std::string(published.name);
  }
  return names;
}

Model synthetic_model(const ModelConfig& config, const TransformSpec& spec, TableBits tables) {
  Random random(1);
  Model model;
  model.config = config;
  model.config.tied_embeddings = config.tied_embeddings && tables.embedding == tables.head;
  model.embedding = random_table(random, config, tables.embedding);
  if (!model.config.tied_embeddings) model.lm_head = random_table(random, config, tables.head);
  model.final_norm.assign(static_cast<size_t>(config.hidden), 1.0F);
  Layer& layer = model.layers.emplace_back();
  for (const Role role : kRoles) {
    const RoleSpaces spaces = spaces_of(role);
    layer[role].quantized =
        random_weight(random, config.width(spaces.output), config.width(spaces.input));
  }
  layer.attention_norm = layer.ffn_norm = model.final_norm;
  if (config.query_key_norm) {
    layer.query_norm.assign(static_cast<size_t>(config.head_dim), 1.0F);
    layer.key_norm = layer.query_norm;
  }
  model.online = online_transforms(config, spec);
  return model;
}

}  // namespace quarot
