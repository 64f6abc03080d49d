#include "kernels/cpu/cache_isa.h"
#include "kernels/cpu/scalar/simd.h"
#include "kernels/cpu/table_isa.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {

// The loops over 16 plain floats become NEON by the compiler, fused multiply-adds included.
const FloatKernels kNeonFloats = {
    .rows = Rows<F16Scalar>::run,
    .heads = Cache<F16Scalar>::heads,
    .attend = Cache<F16Scalar>::attend,
    .merge = Cache<F16Scalar>::merge,
    .table = Table<F16Scalar>::run,
    .peak = Cache<F16Scalar>::float_peak,
};

}  // namespace quarot::cpu
