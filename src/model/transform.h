// Moving a whole model into another basis: norm folding, fusing, and the transforms left online.
// The function stays the same; DESIGN.md, sections 2 and 3.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/basis.h"
#include "model/model.h"

namespace quarot {

enum class BasisKind {
  kHadamard,       // randomised Hadamard, signs from the seed
  kPlainHadamard,  // without signs
  kRandom,         // Haar-random orthogonal
  kPrincipal,      // principal components; this and the next found by calibration, and of the
                   // residual's basis only
  kLearned,        // a randomised Hadamard turned until activations are flat
};

// Which bases change. The residual stream's is either fused (R1) or left alone, with the norms'
// outputs rotated online instead.
struct TransformSpec {
  bool residual = false;                  // R1, fused
  bool norm_output = false;               // online, after the norm's gain
  bool value = false;                     // R2, fused into v_proj and o_proj
  bool heads = false;                     // across heads, online before o_proj
  bool query_key = false;                 // R3, online on q and k after RoPE
  bool ffn = false;                       // R4, online before down_proj
  BasisKind kind = BasisKind::kHadamard;  // of the residual's or the norm outputs' basis; the
                                          // others are plain Hadamards
  uint64_t seed = 0;

  bool any() const { return residual || norm_output || value || heads || query_key || ffn; }
  bool is_random() const {
    return (residual || norm_output) && (kind == BasisKind::kHadamard ||
                                         kind == BasisKind::kRandom || kind == BasisKind::kLearned);
  }
  // Whether the residual stream's basis is found by calibration.
  bool finds_residual_basis() const {
    return residual && (kind == BasisKind::kPrincipal || kind == BasisKind::kLearned);
  }
  bool operator==(const TransformSpec&) const = default;
};

void to_json(nlohmann::json& json, const TransformSpec& spec);
// Every field optional, over `base`.
Result<TransformSpec> parse_transform_spec(const nlohmann::json& json, const std::string& where,
                                           TransformSpec base = {});

// Diagonals that stand before the rotations of one layer's sites; empty: none. Entries > 0.
struct LayerScales {
  std::vector<double> attention_input;  // [hidden], folded into the norm's gain
  std::vector<double> ffn_input;        // [hidden], likewise
  std::vector<double> value;            // [kv_heads · head_dim], folded into v_proj's rows
  std::vector<double> ffn_hidden;       // [ffn], folded into up_proj's rows

  // The one that scales a site; the attention output is scaled as V is.
  std::vector<double>& operator[](Space site) {
    return site == Space::kAttentionInput    ? attention_input
           : site == Space::kAttentionOutput ? value
           : site == Space::kFfnInput        ? ffn_input
                                             : ffn_hidden;
  }
};

// Constants taken from K (after RoPE) and V of one layer before caching, in the original basis;
// empty: none.
struct LayerCenters {
  std::vector<float> key;    // [kv_heads · head_dim]
  std::vector<float> value;  // [kv_heads · head_dim]
};

// Applies one spec to a model piece by piece, so that a model larger than memory can be moved layer
// by layer.
class Transformer {
 public:
  // `found`: the residual's basis where the spec says that calibration finds it.
  Transformer(const ModelConfig& config, const TransformSpec& spec,
              const std::optional<Orthogonal>& found = std::nullopt);

  const OnlineTransforms& online() const { return online_; }

  // For people: how the operator of each transform that the spec asks for is made.
  std::map<std::string, std::string> descriptions() const;

  // Embedding, final norm and lm_head. Tied embeddings are untied first where the two part ways.
  void transform_outer(Model& model) const;
  bool unties() const { return residual_.has_value(); }

  // The same, some rows at a time; the final norm's gains become 1 where they fold into lm_head.
  void transform_embedding(Matrix& rows) const;
  void transform_head(Matrix& rows, const std::vector<float>& final_norm) const;
  void transform_layer(Layer& layer, int64_t index, const LayerScales& scales,
                       const LayerCenters& centers) const;

  // What the linears at a site read, from the layer before it was transformed to after.
  void transform_inputs(Matrix& rows, Space site, const Layer& original, int64_t index,
                        const LayerScales& scales, const LayerCenters& centers) const;

  // Of one space of layer `index`, from the model's own basis; before a fused R1, with the norms'
  // gains folded away.
  Basis basis_of(Space space, const LayerScales& scales, int64_t index) const;

 private:
  std::vector<double> signs(const char* purpose, int64_t index, int64_t size) const;
  std::span<const float> folded_gain(const Layer& layer, Space site) const;

  const ModelConfig config_;
  TransformSpec spec_;
  std::optional<Orthogonal> residual_;
  std::optional<Orthogonal> value_;
  OnlineTransforms online_;
};

// The online transforms a spec leaves to the forward pass.
OnlineTransforms online_transforms(const ModelConfig& config, const TransformSpec& spec);

}  // namespace quarot
