#include "kernels/cpu/features.h"
#include "kernels/cpu/neon/gemm_isa.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {

const Kernels kNeonDot = {
    .name = "neondot",
    .available = has_neon_dot,
    .gemm = gemm_range<NeonDot>,
    .floats = &kNeonFloats,
    .dot_peak = dot_peak<NeonDot>,
};

}  // namespace quarot::cpu
