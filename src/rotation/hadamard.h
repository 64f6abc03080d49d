// Hadamard matrices: entries ±1, H·Hᵀ = N·I, made by the classical constructions.
#pragma once

#include <cstdint>
#include <optional>

#include "rotation/jacobsthal.h"

namespace quarot {

enum class FactorKind {
  kNone,        // order 1
  kSylvester,   // Walsh–Hadamard
  kPaley1,      // order q + 1, q ≡ 3 mod 4 a prime power (Paley 1933)
  kPaley2,      // order 2(q + 1), q ≡ 1 mod 4 a prime power (Paley 1933)
  kWilliamson,  // order 4t, from four symmetric circulants of order t (Williamson 1944)
  kKronecker,   // a product of the above
  kDct,  // no Hadamard matrix of this order is constructed here: an orthogonal DCT-II instead
};

// How the Hadamard matrix of this order is made, or nothing where no construction here gives one.
std::optional<FactorKind> hadamard_construction(int64_t order);

// The matrix itself. The order must have a construction.
SignMatrix hadamard_matrix(int64_t order);

}  // namespace quarot
