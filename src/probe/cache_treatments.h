// What each way of treating keys and values leaves of the error of a low-bit cache.
#pragma once

#include <array>

#include "model/config.h"
#include "probe/treatments.h"

namespace quarot {

inline constexpr std::array kCacheTreatments = {"plain", "centred", "rotated",
                                                "centred and rotated"};

// ‖X̂ − X‖ / ‖X − X̄‖ over the rows held out, by [bits][treatment]; X̄ is their mean, which, in the
// keys, changes no attention weight, and in the values only a bias.
using CacheErrors = std::array<std::array<double, kCacheTreatments.size()>, kTrialBits.size()>;

// rows [tokens, KV heads · head_dim], keys behind RoPE or values, in the model's own basis. Heads
// are quantised as `quant` says but for the bits, turned by the Hadamard matrix of head_dim (R3,
// R2), and centred by the mean of `calibration`.
CacheErrors treat_cache(const CacheQuant& quant, int64_t head_dim, ConstMatrixRef calibration,
                        ConstMatrixRef held_out);

}  // namespace quarot
