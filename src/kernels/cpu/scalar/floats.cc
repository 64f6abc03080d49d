#include "kernels/cpu/cache_isa.h"
#include "kernels/cpu/scalar/simd.h"
#include "kernels/cpu/table_isa.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {

const FloatKernels kScalarFloats = {
    .rows = Rows<F16Scalar>::run,
    .heads = Cache<F16Scalar>::heads,
    .attend = Cache<F16Scalar>::attend,
    .merge = Cache<F16Scalar>::merge,
    .table = Table<F16Scalar>::run,
    .peak = Cache<F16Scalar>::float_peak,
};

}  // namespace quarot::cpu
