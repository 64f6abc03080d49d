// A model's shape: what config.json says, checked, in one vocabulary for all families.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/space.h"
#include "quarot/status.h"

namespace quarot {

// Rotary position embedding: head dimensions i and i + rotary_dim/2 turn by position ·
// frequency[i].
struct RopeConfig {
  double theta = 10000;
  int64_t rotary_dim = 0;  // ≤ head_dim, even; the dimensions beyond it do not turn
  std::vector<double> inverse_frequency;       // [rotary_dim/2], scaling applied
  std::vector<double> long_inverse_frequency;  // long RoPE: beyond `original_positions`; else empty
  int64_t original_positions = 0;
  double attention_factor = 1;  // cos and sin are multiplied by it (YaRN, long RoPE)

  const std::vector<double>& frequencies(int64_t positions) const {
    return !long_inverse_frequency.empty() && positions > original_positions
               ? long_inverse_frequency
               : inverse_frequency;
  }
};

struct ModelConfig {
  std::string family;  // config.json's model_type
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;
  double norm_eps = 1e-5;
  bool tied_embeddings = false;
  bool query_key_norm = false;           // RMSNorm of each head's q and k before RoPE
  std::vector<int64_t> sliding_windows;  // a layer; 0: attends to everything before it
  RopeConfig rope;

  int64_t width(Space space) const;
  int64_t group() const { return heads / kv_heads; }  // query heads that share a KV head (GQA)
  int64_t parameters() const;  // elements of all weights, embeddings counted once if tied
};

// Reads and checks what all families share, then what the family named by model_type adds. An
// unknown family is kUnsupported, with the list of those known. `where` names the file in errors.
Result<ModelConfig> parse_config(const nlohmann::json& config, const std::string& where);

}  // namespace quarot
