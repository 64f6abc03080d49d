// How the transform of one width is made: Walsh–Hadamard butterflies for a power of two, and one
// small dense factor for what is left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rotation/hadamard.h"

namespace quarot {

// n = 2^log2 · m, H = H_m ⊗ Walsh(2^log2), scaled to be orthonormal: an n-vector is the row-major
// array [m][2^log2]; the butterflies act on each row, the factor on each column.
struct HadamardPlan {
  int64_t n = 1;
  int log2 = 0;
  int64_t m = 1;
  FactorKind kind = FactorKind::kNone;
  std::string description;  // "2^6 x Paley I(12)"; for people
  std::vector<double>
      factor;  // m × m, row-major, orthonormal (±1/√m for a Hadamard); empty if m = 1
  bool is_hadamard = true;  // false with the DCT fallback

  // Multiply-adds of the transform of one vector as defined; FastTransform needs fewer.
  int64_t operations() const { return n * (log2 + (m > 1 ? m : 0)); }
};

// The plan with the smallest m = 2^j·odd ≤ 2048 for which a Hadamard matrix is constructed here;
// else m is the odd part of n and the factor the DCT-II of that order (13696 = 2^7 · 107). Always
// succeeds for n ≥ 1.
//
// Why a DCT: no entry of it exceeds √(2/m), so one loud channel is spread over all n outputs and no
// output holds more than √2 times what a Hadamard matrix would leave there. A block-diagonal
// Hadamard spreads it over its own block of 2^log2 only: √m times as much. The dense factor takes
// m² numbers, so n whose odd part is large (beyond any model's width) costs memory.
HadamardPlan plan_hadamard(int64_t n);

}  // namespace quarot
