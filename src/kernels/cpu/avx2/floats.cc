#include "kernels/cpu/avx2/simd.h"
#include "kernels/cpu/cache_isa.h"
#include "kernels/cpu/table_isa.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {

const FloatKernels kAvx2Floats = {
    .rows = Rows<F16Avx2>::run,
    .heads = Cache<F16Avx2>::heads,
    .attend = Cache<F16Avx2>::attend,
    .merge = Cache<F16Avx2>::merge,
    .table = Table<F16Avx2>::run,
    .peak = Cache<F16Avx2>::float_peak,
};

}  // namespace quarot::cpu
