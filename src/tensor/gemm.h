// Float matrix products. Every element of the result is a sum in one order: chains of fused
// multiply-adds in float32 over kChain inner elements each, from zero, added up first to last. So
// the bits are the same on every machine and any number of threads, whatever else is in the
// matrices; and errors do not grow with the inner dimension but with its chains.
#pragma once

#include "tensor/matrix.h"

namespace quarot {

inline constexpr int64_t kChain = 256;

// y = x·wᵀ, or y += x·wᵀ with accumulate (chain after chain is added to y). x [t, in], w [out, in],
// y [t, out].
void matmul_transposed(ConstMatrixRef x, ConstMatrixRef w, MatrixRef y, bool accumulate = false);

// y = a·b, or y += a·b. a [m, k], b [k, n], y [m, n].
void matmul(ConstMatrixRef a, ConstMatrixRef b, MatrixRef y, bool accumulate = false);

}  // namespace quarot
