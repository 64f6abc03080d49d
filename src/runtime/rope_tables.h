// cos and sin of every row of a batch, for rotary position embedding.
#pragma once

#include "model/config.h"
#include "runtime/backend.h"

namespace quarot {

// cos, sin [rows, rotary_dim/2]; angles in float64.
void fill_rope_tables(const RopeConfig& rope, const Batch& batch, Matrix& cos, Matrix& sin);

}  // namespace quarot
