// Float matrix products. Every element of the result is one chain of fused multiply-adds in
// float32, over the inner dimension first to last: the same bits on every machine and any number of
// threads, whatever else is in the matrices.
#pragma once

#include "tensor/matrix.h"

namespace quarot {

// y = x·wᵀ, or y += x·wᵀ with accumulate (the chain begins with y). x [t, in], w [out, in], y [t,
// out].
void matmul_transposed(ConstMatrixRef x, ConstMatrixRef w, MatrixRef y, bool accumulate = false);

// y = a·b, or y += a·b. a [m, k], b [k, n], y [m, n].
void matmul(ConstMatrixRef a, ConstMatrixRef b, MatrixRef y, bool accumulate = false);

}  // namespace quarot
