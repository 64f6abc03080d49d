#include "rotation/jacobsthal.h"

#include <vector>

namespace quarot {

namespace {

int64_t smallest_prime_factor(int64_t n) {
  for (int64_t p = 2; p * p <= n; ++p) {
    if (n % p == 0) return p;
  }
  return n;
}

// An element of GF(p^k) is a polynomial over GF(p) of degree below k, written as the number whose
// base-p digits are its coefficients, the constant term first.

// χ of every element, or nothing unless X generates the multiplicative group modulo the monic
// polynomial X^k + modulus: then its even powers are the squares. Only multiplying by X is needed.
std::vector<int8_t> characters_if_primitive(int64_t p, int64_t q, int64_t modulus) {
  std::vector<int8_t> chi(static_cast<size_t>(q), 0);
  const int64_t top = q / p;  // the digit of X^(k−1)
  int64_t power = 1;
  for (int64_t exponent = 0; exponent < q - 1; ++exponent) {
    if (power == 0 || chi[power] != 0) return {};  // the powers repeat too early
    chi[power] = exponent % 2 == 0 ? 1 : -1;
    // power·X, with X^k = −modulus.
    const int64_t carry = power / top;
    const int64_t shifted = power % top * p;
    power = 0;
    for (int64_t digit = 1; digit < q; digit *= p) {
      const int64_t d = shifted / digit % p + (p - carry) * (modulus / digit % p);
      power += d % p * digit;
    }
  }
  return chi;
}

int64_t subtract(int64_t a, int64_t b, int64_t p, int64_t q) {
  int64_t difference = 0;
  for (int64_t digit = 1; digit < q; digit *= p) {
    difference += (a / digit % p + p - b / digit % p) % p * digit;
  }
  return difference;
}

}  // namespace

bool is_prime_power(int64_t q) {
  if (q < 2) return false;
  const int64_t p = smallest_prime_factor(q);
  while (q % p == 0) q /= p;
  return q == 1;
}

SignMatrix jacobsthal_matrix(int64_t q) {
  assert(q % 2 == 1 && is_prime_power(q));
  const int64_t p = smallest_prime_factor(q);
  // Every finite field has a primitive polynomial, so the search ends.
  std::vector<int8_t> chi;
  for (int64_t modulus = 1; chi.empty(); ++modulus) {
    chi = characters_if_primitive(p, q, modulus);
  }
  SignMatrix matrix(q, q);
  for (int64_t a = 0; a < q; ++a) {
    for (int64_t b = 0; b < q; ++b) matrix(a, b) = chi[subtract(a, b, p, q)];
  }
  return matrix;
}

}  // namespace quarot
