#include "kernels/cpu/avx512vnni/gemm_isa.h"
#include "kernels/cpu/avx512vnni/simd.h"
#include "kernels/cpu/cache_isa.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/rows_isa.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {

const Kernels kAvx512Vnni = {
    .name = "avx512vnni",
    .available = has_avx512_vnni,
    .gemm = gemm_range<Avx512Vnni>,
    .rows = Rows<F16Avx512>::run,
    .heads = Cache<F16Avx512>::heads,
    .attend = Cache<F16Avx512>::attend,
    .merge = Cache<F16Avx512>::merge,
    .dot_peak = dot_peak<Avx512Vnni>,
    .float_peak = Cache<F16Avx512>::float_peak,
};

}  // namespace quarot::cpu
