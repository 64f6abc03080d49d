// Weights of 2 bits as points of a lattice, eight at a time: the E8P codebook of QuIP# (Tseng et
// al. 2024, section 4.2). Simulated only.
//
// A codeword is 16 bits, for the point s∘σ + t of E8 + ¼:
//   bits 0…7   which s: 256 vectors of ½, 3/2, 5/2 — all 227 with ‖s‖² ≤ 10, and of those with
//              ‖s‖² = 12 the first 29 that have five 3/2, in lexicographic order (the paper's table
//              has 29 others of these; codes are not interchangeable with it)
//   bits 8…14  signs σ of elements 0…6, 1 for −; element 7's makes the sum of s∘σ even
//   bit 15     t: 1 for −¼, else +¼, alike in all elements
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "quant/hessian.h"
#include "quarot/status.h"

namespace quarot {

inline constexpr int64_t kE8Width = 8;
using E8Vector = std::array<float, kE8Width>;

E8Vector e8_point(uint16_t code);
// Of the point nearest to x; ties go to the lower s and to +¼.
uint16_t nearest_e8(const E8Vector& x);

// Every row in blocks of eight columns, times a scale of its own: root mean square / 1.03, near the
// least error for Gaussian weights. Widths are multiples of eight; a row of zeros becomes zero.
Matrix round_to_e8(ConstMatrixRef weight);

// The same, block by block, where the blocks not yet rounded compensate (QuIP#'s BlockLDLQ, section
// 4.1). LDLQ is GPTQ's rounding (Chee et al. 2023, theorem 6); this is it for vectors. `damp` as
// GPTQ's. kInvalidArgument: not positive definite however damped.
Result<Matrix> ldlq_to_e8(ConstMatrixRef weight, const Hessian& hessian, float damp);

}  // namespace quarot
