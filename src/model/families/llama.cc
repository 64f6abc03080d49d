#include "model/family.h"

namespace quarot {

namespace {

constexpr LinearSpec kLinears[] = {
    {Role::kQuery, "self_attn.q_proj"}, {Role::kKey, "self_attn.k_proj"},
    {Role::kValue, "self_attn.v_proj"}, {Role::kOutput, "self_attn.o_proj"},
    {Role::kGate, "mlp.gate_proj"},     {Role::kUp, "mlp.up_proj"},
    {Role::kDown, "mlp.down_proj"},
};

Status configure(const JsonFields&, ModelConfig&) { return {}; }

}  // namespace

constinit const std::span<const LinearSpec> kLlamaLinears = kLinears;

const Family kLlama = {.model_type = "llama", .linears = kLinears, .configure = configure};

}  // namespace quarot
