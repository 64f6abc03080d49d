// Models made of random numbers, of any family and shape, and a tokenizer whose tokens are what the
// test says: for what needs no trained model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "support/model.h"
#include "text/tokenizer.h"

namespace quarot::testing {

// A small llama's config.json, with `changes` over it.
inline nlohmann::json config_json(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json json = {{"model_type", "llama"},        {"hidden_size", 48},
                         {"num_hidden_layers", 2},       {"num_attention_heads", 6},
                         {"num_key_value_heads", 2},     {"head_dim", 16},
                         {"intermediate_size", 80},      {"vocab_size", 96},
                         {"tie_word_embeddings", false}, {"max_position_embeddings", 512}};
  json.update(changes);
  return json;
}

inline std::vector<float> random_vector(Random& random, int64_t size, double mean, double spread) {
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) value = static_cast<float>(mean + spread * random.normal());
  return values;
}

inline Matrix random_matrix(Random& random, int64_t rows, int64_t cols, double spread) {
  Matrix matrix(rows, cols);
  for (float& value : matrix.elements()) value = static_cast<float>(spread * random.normal());
  return matrix;
}

// Weights of variance 1/in, gains about 1; biases where the family has them.
inline Model random_model(const nlohmann::json& config, uint64_t seed) {
  Random random(seed);
  Model model;
  model.config = value_of(parse_config(config, "test"));
  const ModelConfig& c = model.config;
  model.embedding = RowTable(random_matrix(random, c.vocab, c.hidden, 1));
  if (!c.tied_embeddings) {
    model.lm_head = RowTable(
        random_matrix(random, c.vocab, c.hidden, 1 / std::sqrt(static_cast<double>(c.hidden))));
  }
  model.final_norm = random_vector(random, c.hidden, 1, 0.3);
  for (int64_t i = 0; i < c.layers; ++i) {
    Layer layer;
    for (const Role role : kRoles) {
      const RoleSpaces spaces = spaces_of(role);
      const int64_t in = c.width(spaces.input);
      const int64_t out = c.width(spaces.output);
      layer[role].weight = random_matrix(random, out, in, 1 / std::sqrt(static_cast<double>(in)));
      const bool reads_norm = spaces.input == Space::kAttentionInput;
      if (c.family == "qwen2" && reads_norm) layer[role].bias = random_vector(random, out, 0, 0.5);
    }
    layer.attention_norm = random_vector(random, c.hidden, 1, 0.3);
    layer.ffn_norm = random_vector(random, c.hidden, 1, 0.3);
    if (c.query_key_norm) {
      layer.query_norm = random_vector(random, c.head_dim, 1, 0.3);
      layer.key_norm = random_vector(random, c.head_dim, 1, 0.3);
    }
    model.layers.push_back(std::move(layer));
  }
  return model;
}

inline std::vector<Token> random_tokens(int64_t count, int64_t vocab, uint64_t seed) {
  Random random(seed);
  std::vector<Token> tokens(static_cast<size_t>(count));
  for (Token& token : tokens)
    token = static_cast<Token>(random.below(static_cast<uint64_t>(vocab)));
  return tokens;
}

// Token i is the bytes pieces[i]; encode() takes the longest piece at each place.
class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces, std::vector<Token> ends = {},
                          std::optional<Token> bos = std::nullopt)
      : pieces_(std::move(pieces)), ends_(std::move(ends)), bos_(bos) {}

  std::vector<Token> encode(std::string_view text, bool) const override {
    std::vector<Token> tokens;
    while (!text.empty()) {
      size_t best = 0;
      for (size_t i = 1; i < pieces_.size(); ++i) {
        const bool longer =
            pieces_[i].size() > pieces_[best].size() || !text.starts_with(pieces_[best]);
        if (text.starts_with(pieces_[i]) && longer) best = i;
      }
      tokens.push_back(static_cast<Token>(best));
      text.remove_prefix(std::min(text.size(), std::max<size_t>(pieces_[best].size(), 1)));
    }
    return tokens;
  }
  std::string decode(std::span<const Token> tokens, bool) const override {
    std::string text;
    for (const Token token : tokens) text += token_bytes(token);
    return text;
  }
  std::string token_bytes(Token token) const override {
    return pieces_[static_cast<size_t>(token)];
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  std::optional<Token> token_id(std::string_view content) const override {
    const auto it = std::find(pieces_.begin(), pieces_.end(), content);
    if (it == pieces_.end()) return std::nullopt;
    return static_cast<Token>(it - pieces_.begin());
  }
  bool is_special(Token) const override { return false; }
  std::optional<Token> bos() const override { return bos_; }
  const std::vector<Token>& end_tokens() const override { return ends_; }
  bool adds_bos() const override { return bos_.has_value(); }
  const std::optional<std::string>& chat_template() const override { return chat_template_; }

 private:
  std::vector<std::string> pieces_;
  std::vector<Token> ends_;
  std::optional<Token> bos_;
  std::optional<std::string> chat_template_;
};

// One token a byte value: enough where the text does not matter.
inline PieceTokenizer byte_tokenizer(int64_t vocab) {
  std::vector<std::string> pieces;
  for (int64_t i = 0; i < vocab; ++i) pieces.emplace_back(1, static_cast<char>(' ' + i));
  return PieceTokenizer(std::move(pieces));
}

}  // namespace quarot::testing
