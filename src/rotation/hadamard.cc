#include "rotation/hadamard.h"

#include <algorithm>
#include <array>
#include <bit>

namespace quarot {

namespace {

SignMatrix sylvester(int64_t order) {
  SignMatrix h(order, order);
  for (int64_t i = 0; i < order; ++i) {
    for (int64_t j = 0; j < order; ++j) {
      h(i, j) = std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? 1 : -1;
    }
  }
  return h;
}

SignMatrix kronecker(const SignMatrix& a, const SignMatrix& b) {
  const int64_t n = b.rows();
  SignMatrix h(a.rows() * n, a.rows() * n);
  for (int64_t i = 0; i < h.rows(); ++i) {
    for (int64_t j = 0; j < h.rows(); ++j) {
      h(i, j) = static_cast<int8_t>(a(i / n, j / n) * b(i % n, j % n));
    }
  }
  return h;
}

// The Jacobsthal matrix Q of q bordered by a row of +1 and a column of `column`, 0 in the corner:
// C·Cᵀ = q·I.
SignMatrix conference(int64_t q, int8_t column) {
  const SignMatrix jacobsthal = jacobsthal_matrix(q);
  SignMatrix c(q + 1, q + 1, 1);
  c(0, 0) = 0;
  for (int64_t i = 1; i <= q; ++i) {
    c(i, 0) = column;
    std::ranges::copy(jacobsthal.row(i - 1), c.row(i).begin() + 1);
  }
  return c;
}

// I + C with C antisymmetric.
SignMatrix paley1(int64_t order) {
  SignMatrix h = conference(order - 1, -1);
  for (int64_t i = 0; i < order; ++i) h(i, i) = 1;
  return h;
}

// C ⊗ [+ +; + −] + I ⊗ [+ −; − −] with C symmetric.
SignMatrix paley2(int64_t order) {
  const SignMatrix c = conference(order / 2 - 1, 1);
  SignMatrix h(order, order);
  for (int64_t i = 0; i < order; ++i) {
    for (int64_t j = 0; j < order; ++j) {
      const bool last = i % 2 == 1 && j % 2 == 1;
      const int on_diagonal = i % 2 == 0 && j % 2 == 0 ? 1 : -1;
      const int elsewhere = last ? -c(i / 2, j / 2) : c(i / 2, j / 2);
      h(i, j) = static_cast<int8_t>(i / 2 == j / 2 ? on_diagonal : elsewhere);
    }
  }
  return h;
}

// Symmetric first rows a, b, c, d of length t with A² + B² + C² + D² = 4t·I: bit k of a mask is set
// where elements k and t − k are −1. Such rows are known since Baumert, Golomb and Hall 1962
// (t = 23), Baumert 1966 (29), Baumert and Hall 1965 (39) and Williamson 1944 (43). These come from
// our own search over power spectra: of all symmetric rows for 23 and 29; of rows that multiplying
// the index by 6 leaves alone for 43; for 39, b and c are a with its index multiplied by 16 and 22.
struct WilliamsonRows {
  int64_t t;
  std::array<uint32_t, 4> minus;
};
constexpr std::array<WilliamsonRows, 4> kWilliamson = {{
    {23, {0x634, 0x5e0, 0x53e, 0x914}},
    {29, {0xdca, 0x49ea, 0x396, 0x3848}},
    {39, {0x2bcdc, 0x5f724, 0xc62fa, 0x4d6fc}},
    {43, {0x3cda1c, 0x135e04, 0x2450ce, 0x342b28}},
}};

const WilliamsonRows* find_williamson(int64_t order) {
  const auto* found = std::ranges::find(kWilliamson, order, [](const auto& w) { return 4 * w.t; });
  return found == kWilliamson.end() ? nullptr : found;
}

// The quaternion array [A B C D; −B A −D C; −C D A −B; −D −C B A]: the block in row i and column j
// is number i xor j.
SignMatrix williamson(const WilliamsonRows& rows) {
  constexpr std::array<std::array<int, 4>, 4> kSigns = {
      {{1, 1, 1, 1}, {-1, 1, -1, 1}, {-1, 1, 1, -1}, {-1, -1, 1, 1}}};
  const int64_t t = rows.t;
  SignMatrix h(4 * t, 4 * t);
  for (int64_t i = 0; i < 4 * t; ++i) {
    for (int64_t j = 0; j < 4 * t; ++j) {
      const int64_t distance = std::abs(i % t - j % t);
      const int64_t k = std::min(distance, t - distance);
      const bool minus = (rows.minus[(i / t) ^ (j / t)] >> k & 1U) != 0;
      h(i, j) = static_cast<int8_t>(minus ? -kSigns[i / t][j / t] : kSigns[i / t][j / t]);
    }
  }
  return h;
}

// The smaller order of a Kronecker product that gives `order`.
std::optional<int64_t> kronecker_factor(int64_t order) {
  for (int64_t a = 2; a * a <= order; a += 2) {
    if (order % a == 0 && hadamard_construction(a) && hadamard_construction(order / a)) return a;
  }
  return std::nullopt;
}

}  // namespace

std::optional<FactorKind> hadamard_construction(int64_t order) {
  if (order == 1) return FactorKind::kNone;
  if (order > 1 && std::has_single_bit(static_cast<uint64_t>(order))) return FactorKind::kSylvester;
  if (order < 4 || order % 4 != 0) return std::nullopt;
  if (is_prime_power(order - 1)) return FactorKind::kPaley1;
  if (order % 8 == 4 && is_prime_power(order / 2 - 1)) return FactorKind::kPaley2;
  if (find_williamson(order) != nullptr) return FactorKind::kWilliamson;
  if (kronecker_factor(order)) return FactorKind::kKronecker;
  return std::nullopt;
}

SignMatrix hadamard_matrix(int64_t order) {
  const std::optional<FactorKind> kind = hadamard_construction(order);
  assert(kind.has_value());
  switch (*kind) {
    case FactorKind::kPaley1:
      return paley1(order);
    case FactorKind::kPaley2:
      return paley2(order);
    case FactorKind::kWilliamson:
      return williamson(*find_williamson(order));
    case FactorKind::kKronecker: {
      const int64_t a = *kronecker_factor(order);
      return kronecker(hadamard_matrix(order / a), hadamard_matrix(a));
    }
    default:
      return sylvester(order);
  }
}

}  // namespace quarot
