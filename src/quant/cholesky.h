// Large Cholesky factors on all cores, and the loop under them.
#pragma once

#include <cstdint>

#include "base/function_ref.h"
#include "tensor/matrix.h"

namespace quarot {

// body(i) for i in [0, count), in parallel, and inside a parallel region even where count is 1: a
// float product in the body then runs on one thread, so that its sums do not depend on how many
// there are.
void for_each_block(int64_t count, FunctionRef<void(int64_t)> body);

// Replaces a symmetric matrix, of which only the lower triangle is read, by its lower Cholesky
// factor L, a = L·Lᵀ, zeros above the diagonal. False where it is not positive definite to the
// precision of the type; the contents are lost then.
bool cholesky(MatrixView<float> a);
bool cholesky(MatrixView<double> a);

// Every row x ← x·(L·Lᵀ)⁻¹, on one thread.
void solve_cholesky(MatrixView<const double> lower, MatrixView<double> rows);

}  // namespace quarot
