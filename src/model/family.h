// One declaration an architecture family: its linears, where the file keeps them, and what its
// config says beyond the common. To add a family, add one file to families/ and its name to the
// list below.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/json_fields.h"
#include "model/space.h"

namespace quarot {

// Where a linear's rows lie. Linears that name the same tensor share it: consecutive rows, in the
// order of the declaration (a fused qkv_proj).
struct LinearSpec {
  Role role;
  std::string_view tensor;  // under "model.layers.N.", without ".weight"
};

struct Family {
  std::string_view model_type;
  std::span<const LinearSpec> linears;
  std::string_view attention_norm = "input_layernorm";
  std::string_view ffn_norm = "post_attention_layernorm";

  // What only this family's config says; called after the common fields are set.
  Status (*configure)(const JsonFields& json, ModelConfig& config);
};

extern const Family kLlama, kMistral, kQwen2, kQwen3, kPhi3;

std::span<const Family* const> families();
const Family* find_family(std::string_view model_type);

// The linears of the llama block, which most families share.
extern const std::span<const LinearSpec> kLlamaLinears;

// Every layer of `config` slides over the window that `sliding_window` gives, if it gives one.
Status slide_every_layer(const JsonFields& json, ModelConfig& config);

}  // namespace quarot
