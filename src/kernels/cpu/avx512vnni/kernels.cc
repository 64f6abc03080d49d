#include "kernels/cpu/avx512vnni/gemm_isa.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {

const Kernels kAvx512Vnni = {
    .name = "avx512vnni",
    .available = has_avx512_vnni,
    .gemm = gemm_range<Avx512Vnni>,
    .floats = &kAvx512Floats,
    .dot_peak = dot_peak<Avx512Vnni>,
};

}  // namespace quarot::cpu
