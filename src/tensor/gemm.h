// Float matrix products, by oneDNN. Sums are float32 in an order the library chooses: results may
// differ in the last bits between machines and thread counts.
#pragma once

#include "tensor/matrix.h"

namespace quarot {

// y = x·wᵀ, or y += x·wᵀ with accumulate. x [t, in], w [out, in], y [t, out].
void matmul_transposed(ConstMatrixRef x, ConstMatrixRef w, MatrixRef y, bool accumulate = false);

// y = a·b, or y += a·b. a [m, k], b [k, n], y [m, n].
void matmul(ConstMatrixRef a, ConstMatrixRef b, MatrixRef y, bool accumulate = false);

}  // namespace quarot
