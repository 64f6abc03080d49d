#include "kernels/cpu/avx512vnni/simd.h"
#include "kernels/cpu/cache_isa.h"
#include "kernels/cpu/table_isa.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {

const FloatKernels kAvx512Floats = {
    .rows = Rows<F16Avx512>::run,
    .heads = Cache<F16Avx512>::heads,
    .attend = Cache<F16Avx512>::attend,
    .merge = Cache<F16Avx512>::merge,
    .table = Table<F16Avx512>::run,
    .peak = Cache<F16Avx512>::float_peak,
};

}  // namespace quarot::cpu
