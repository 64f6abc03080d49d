// Quadratic residues in finite fields: what the Paley constructions are made of.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace quarot {

// Entries +1 and -1 (and 0 where a definition says so).
using SignMatrix = BasicMatrix<int8_t>;

// True for p^k, p prime, k ≥ 1.
bool is_prime_power(int64_t q);

// Q(a, b) = χ(a − b) over the field of q elements, q an odd prime power: χ is 0 at zero, +1 at the
// squares and −1 elsewhere. Q·Qᵀ = q·I − J; Q is symmetric if q ≡ 1 mod 4, antisymmetric if q ≡ 3.
SignMatrix jacobsthal_matrix(int64_t q);

}  // namespace quarot
