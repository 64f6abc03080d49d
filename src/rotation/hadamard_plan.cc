#include "rotation/hadamard_plan.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <numbers>

namespace quarot {

namespace {

// Beyond it a factor costs more time and memory than its Hadamard property is worth over the DCT.
constexpr int64_t kMaxFactor = 2048;

std::vector<double> hadamard_factor(int64_t m) {
  const double scale = 1 / std::sqrt(static_cast<double>(m));
  const SignMatrix h = hadamard_matrix(m);
  std::vector<double> factor;
  factor.reserve(static_cast<size_t>(m * m));
  for (const int8_t sign : h.elements()) factor.push_back(sign * scale);
  return factor;
}

// C(i, j) = √(2/m)·cos(π·i·(2j + 1)/(2m)), row 0 divided by √2 (Ahmed, Natarajan and Rao 1974).
std::vector<double> dct_factor(int64_t m) {
  std::vector<double> cosines(static_cast<size_t>(4 * m));
  for (int64_t k = 0; k < 4 * m; ++k) {
    cosines[k] = std::cos(std::numbers::pi * static_cast<double>(k) / static_cast<double>(2 * m));
  }
  const double scale = std::sqrt(2 / static_cast<double>(m));
  std::vector<double> factor(static_cast<size_t>(m * m));
  for (int64_t i = 0; i < m; ++i) {
    const double row_scale = i == 0 ? scale * std::numbers::sqrt2 / 2 : scale;
    for (int64_t j = 0; j < m; ++j) {
      factor[i * m + j] = row_scale * cosines[i * (2 * j + 1) % (4 * m)];
    }
  }
  return factor;
}

const char* name_of(FactorKind kind) {
  switch (kind) {
    case FactorKind::kPaley1:
      return "Paley I";
    case FactorKind::kPaley2:
      return "Paley II";
    case FactorKind::kWilliamson:
      return "Williamson";
    case FactorKind::kKronecker:
      return "Kronecker";
    case FactorKind::kDct:
      return "DCT";
    default:
      return "Sylvester";
  }
}

std::string describe(const HadamardPlan& plan) {
  if (plan.m == 1) return fmt::format("2^{}", plan.log2);
  const std::string factor = fmt::format("{}({})", name_of(plan.kind), plan.m);
  return plan.log2 == 0 ? factor : fmt::format("2^{} x {}", plan.log2, factor);
}

}  // namespace

HadamardPlan plan_hadamard(int64_t n) {
  assert(n >= 1);
  HadamardPlan plan;
  plan.n = n;
  plan.log2 = std::countr_zero(static_cast<uint64_t>(n));
  plan.m = n >> plan.log2;
  if (plan.m == 1) {
    plan.kind = plan.log2 == 0 ? FactorKind::kNone : FactorKind::kSylvester;
  } else {
    plan.kind = FactorKind::kDct;
    // A Hadamard matrix of order above 2 needs a multiple of 4.
    for (int64_t m = 4 * plan.m; m <= kMaxFactor && n % m == 0; m *= 2) {
      if (const auto kind = hadamard_construction(m)) {
        plan.kind = *kind;
        plan.m = m;
        plan.log2 = std::countr_zero(static_cast<uint64_t>(n / m));
        break;
      }
    }
    plan.is_hadamard = plan.kind != FactorKind::kDct;
    plan.factor = plan.is_hadamard ? hadamard_factor(plan.m) : dct_factor(plan.m);
  }
  plan.description = describe(plan);
  return plan;
}

}  // namespace quarot
