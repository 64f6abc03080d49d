// The Hadamard matrices of small orders, known to the compiler: the same as rotation/hadamard.h
// makes, by Paley's first construction (1933).
#pragma once

#include <cstdint>

namespace quarot::cuda {

template <int kOrder>
struct SignTable {
  int8_t at[kOrder][kOrder] = {};
};

// χ(a − b) over GF(q), q = p^k; an element is the number whose base-p digits are the coefficients
// of a polynomial modulo X^k + c, with the smallest c that makes X a generator.
template <int q>
struct Residues {
  int8_t of[q] = {};
  bool found = false;
};

constexpr int smallest_factor(int q) {
  int p = 2;
  while (q % p != 0) ++p;
  return p;
}

template <int q>
constexpr Residues<q> residues_modulo(int modulus) {
  constexpr int p = smallest_factor(q);
  Residues<q> chi;
  int power = 1;
  for (int exponent = 0; exponent < q - 1; ++exponent) {
    if (power == 0 || chi.of[power] != 0) return chi;
    chi.of[power] = exponent % 2 == 0 ? 1 : -1;
    const int carry = power / (q / p);
    const int shifted = power % (q / p) * p;
    power = 0;
    for (int digit = 1; digit < q; digit *= p) {
      power += (shifted / digit % p + (p - carry) * (modulus / digit % p)) % p * digit;
    }
  }
  chi.found = true;
  return chi;
}

template <int q>
constexpr SignTable<q + 1> conference(int8_t column) {
  constexpr int p = smallest_factor(q);
  Residues<q> chi;
  for (int modulus = 1; !chi.found; ++modulus) chi = residues_modulo<q>(modulus);
  SignTable<q + 1> c;
  for (int i = 0; i <= q; ++i) {
    for (int j = 0; j <= q; ++j) {
      if (i == 0 || j == 0) {
        c.at[i][j] = static_cast<int8_t>(i == j ? 0 : i == 0 ? 1 : column);
        continue;
      }
      int difference = 0;
      for (int digit = 1; digit < q; digit *= p) {
        difference += ((i - 1) / digit % p + p - (j - 1) / digit % p) % p * digit;
      }
      c.at[i][j] = chi.of[difference];
    }
  }
  return c;
}

// I + C with C antisymmetric, of order q + 1.
template <int q>
constexpr SignTable<q + 1> paley() {
  SignTable<q + 1> h = conference<q>(-1);
  for (int i = 0; i <= q; ++i) h.at[i][i] = 1;
  return h;
}

// The rows [m][2^log2] that column_row.cuh turns, with butterflies over all the columns: where one
// row alone, whose unrolled additions no cache has at hand, takes no longer than on tensor cores.
struct ColumnShape {
  int m;
  int log2;
};
inline constexpr ColumnShape kColumnShapes[] = {{12, 7}, {20, 8}, {44, 7}};

}  // namespace quarot::cuda
