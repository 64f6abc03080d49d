#include "model/family.h"

namespace quarot {

namespace {

constexpr LinearSpec kLinears[] = {
    {Role::kQuery, "self_attn.qkv_proj"}, {Role::kKey, "self_attn.qkv_proj"},
    {Role::kValue, "self_attn.qkv_proj"}, {Role::kOutput, "self_attn.o_proj"},
    {Role::kGate, "mlp.gate_up_proj"},    {Role::kUp, "mlp.gate_up_proj"},
    {Role::kDown, "mlp.down_proj"},
};

}  // namespace

const Family kPhi3 = {.model_type = "phi3", .linears = kLinears, .configure = slide_every_layer};

}  // namespace quarot
