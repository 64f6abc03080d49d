// A model in memory: float32 weights by role, and what its forward pass does between them.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/progress.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "quant/kept_channels.h"
#include "quant/quantizer.h"
#include "quant/row_table.h"
#include "rotation/orthogonal.h"
#include "tensor/matrix.h"

namespace quarot {

struct Linear {
  Matrix weight;                             // [out, in]: y = weight·x + bias; empty where it is
  std::optional<QuantizedWeight> quantized;  // held as integers instead
  std::vector<float> bias;                   // [out], or empty
};

// The clip ratio and the bits of the activations at each site of a layer, by site_index(); 0: the
// recipe's own.
using SiteClips = std::array<float, kSites.size()>;
using SiteBits = std::array<int, kSites.size()>;

struct Layer {
  std::array<Linear, kRoles.size()> linears;
  std::vector<float> attention_norm;  // [hidden] gains
  std::vector<float> ffn_norm;
  std::vector<float> query_norm;  // [head_dim], empty without query_key_norm
  std::vector<float> key_norm;

  // Of each site, by site_index(); empty where no channel is kept in higher precision.
  std::array<ChannelOrder, kSites.size()> orders;
  SiteClips clips{};
  SiteBits activation_bits{};

  // Constants subtracted from K (after RoPE and R3) and V (after R2) before they are cached,
  // [kv_heads · head_dim]; empty: none. Attention does not see K's; V's is in o_proj's bias.
  // DESIGN.md, section 4.
  std::vector<float> key_center;
  std::vector<float> value_center;

  // Of all, what the linears at the site read is quantised by.
  ActivationQuant at(Space site, const ActivationQuant& all) const {
    return all.with(clips[site_index(site)], activation_bits[site_index(site)]);
  }

  Linear& operator[](Role role) { return linears[static_cast<size_t>(role)]; }
  const Linear& operator[](Role role) const { return linears[static_cast<size_t>(role)]; }
};

// What the forward pass applies between the linears because nothing upstream could absorb it.
struct OnlineTransforms {
  std::optional<Orthogonal> norm_output;  // [hidden], to both norms' outputs
  std::optional<Orthogonal> heads;        // [heads · head_dim], before o_proj
  std::optional<Orthogonal> query_key;    // [head_dim], R3, on q and k after RoPE
  std::optional<Orthogonal> ffn;          // [ffn], R4, before down_proj
};

// How the embedding and lm_head are held: integers of 4 or 8 bits, else floats.
struct TableBits {
  int embedding = kFloatBits;
  int head = kFloatBits;
};

struct Model {
  ModelConfig config;
  RowTable embedding;  // [vocab, hidden], as stored
  std::vector<Layer> layers;
  std::vector<float> final_norm;
  RowTable lm_head;  // [vocab, hidden]; empty: the embedding is used
  OnlineTransforms online;

  const RowTable& head() const { return lm_head.empty() ? embedding : lm_head; }
  TableBits table_bits() const;
  int64_t bytes() const;
};

// Everything outside the layers; `layers` stays empty.
Result<Model> load_outer(const Checkpoint& checkpoint);

// kCorrupt unless what load_outer() reads is there, in its shapes.
Status check_outer(const TensorSource& tensors, const ModelConfig& config);

// The embeddings of some tokens alone, [tokens, hidden]; each token in 0 … vocab − 1.
Result<Matrix> load_embeddings(const TensorSource& tensors, const ModelConfig& config,
                               std::span<const Token> tokens);

// One layer, shapes checked against the config.
Result<Layer> load_layer(const TensorSource& tensors, const ModelConfig& config, int64_t index);

Result<Model> load_model(const Checkpoint& checkpoint);

// Gives the layers that a model still lacks, each call the next one: whoever packs or writes them
// need not hold them all.
using NextLayer = std::function<Result<Layer>()>;

// All of a checkpoint's, which must outlive it.
NextLayer layers_of(const Checkpoint& checkpoint, const ModelConfig& config);

// The same layers, each a step of progress; kCancelled once the user wants to stop. What is given
// refers to `progress`.
NextLayer observed(NextLayer layers, Progress& progress);

// Takes in all that are missing.
Status complete(Model& model, const NextLayer& next_layer);

// Turns weights held as integers back into float: what the simulated backend computes with.
void dequantize(Layer& layer);
void dequantize(Model& model);

// A linear's name in the files that quarot writes: llama's, one tensor each, packed or not.
std::string linear_name(int64_t layer, Role role);

}  // namespace quarot
