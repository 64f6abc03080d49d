// What the fused row operations mean. All arithmetic is float32, rounded after each operation, in
// the order written here, so that vector versions can equal it bit for bit:
//
//   RMSNorm    Σx² in 16 sums, sum j of the elements 16·i + j in ascending i, folded in halves
//              (j += j+8, += j+4, += j+2, += j+1); r = 1/√(Σ/n + eps); (x·r)·gain.
//   SwiGLU     (gate / (1 + exp(−gate)))·up, with exp below.
//   Hadamard   butterflies of stride 1, 2, 4, … (times inner): (a, b) → (a+b, a−b); then the
//              factor, Σ_j f[i][j]·x[j] by fused multiply-adds from zero in ascending j; then the
//              scale.
//   Quantise   DESIGN.md section 4: scale = clip·max|x| / (2^(b−1)−1), max|x| limited to FLT_MAX/2
//              and NaN passed over; 1 if that is no normal number; round-half-even of x/scale
//              (0 for NaN) clamped to −2^(b−1)…2^(b−1)−1.
#pragma once

#include "kernels/row_task.h"

namespace quarot::reference {

// e^x by x = n·ln 2 + r, |r| ≤ ½·ln 2, a polynomial in r of degree 7 and the exponent's bits;
// within 2 units in the last place of the true value. x is limited to ±87.
float exp(float x);

void hadamard(const HadamardTask& task, float* x, int64_t width);

void rows(const RowTask& task);

}  // namespace quarot::reference
