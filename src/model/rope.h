// Rotary position embedding: the frequencies that a config asks for.
#pragma once

#include "model/config.h"
#include "model/json_fields.h"

namespace quarot {

// Reads rope_parameters (transformers 5) or rope_theta + rope_scaling (before): types default,
// linear, llama3, yarn, longrope; an explicit `factors` list (GGUF's rope_freqs) divides the
// frequencies. `config` has head_dim and max_positions set. Source: transformers,
// modeling_rope_utils.
Result<RopeConfig> parse_rope(const JsonFields& json, const ModelConfig& config);

}  // namespace quarot
