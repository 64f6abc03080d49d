#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "rotation/hadamard.h"
#include "rotation/hadamard_plan.h"
#include "support/data.h"

namespace quarot {
namespace {

// Entries ±1 and H·Hᵀ = N·I, exactly; square is taken for granted.
bool is_hadamard(const SignMatrix& h) {
  const int64_t n = h.rows();
  for (const int8_t x : h.elements()) {
    if (x != 1 && x != -1) return false;
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      int64_t dot = 0;
      for (int64_t k = 0; k < n; ++k) dot += h(i, k) * h(j, k);
      if (dot != (i == j ? n : 0)) return false;
    }
  }
  return true;
}

TEST(Hadamard, TheCheckerSeesOneWrongSign) {
  SignMatrix h = hadamard_matrix(28);
  EXPECT_TRUE(is_hadamard(h));
  h(3, 5) = static_cast<int8_t>(-h(3, 5));
  EXPECT_FALSE(is_hadamard(h));
}

TEST(Hadamard, EveryOrderClaimedUpTo512IsOne) {
  for (int64_t order = 1; order <= 512; ++order) {
    if (!hadamard_construction(order)) continue;
    const SignMatrix h = hadamard_matrix(order);
    ASSERT_EQ(h.rows(), order);
    ASSERT_EQ(h.cols(), order);
    EXPECT_TRUE(is_hadamard(h)) << order;
  }
}

TEST(Hadamard, LargerOrdersThatModelsNeed) {
  EXPECT_TRUE(is_hadamard(hadamard_matrix(924)));   // 29568 = 2^5 · 924
  EXPECT_TRUE(is_hadamard(hadamard_matrix(1904)));  // 28 ⊗ 68
}

// The multiples of 4 up to 512 that only more intricate constructions reach.
TEST(Hadamard, OnlyTheHardOrdersAreMissing) {
  std::vector<int64_t> missing;
  for (int64_t order = 4; order <= 512; order += 4) {
    if (!hadamard_construction(order)) missing.push_back(order);
  }
  EXPECT_EQ(missing, (std::vector<int64_t>{188, 236, 260, 268, 292, 324, 356, 372, 376, 404, 412,
                                           428, 436, 452, 472, 476, 508}));
  for (int64_t order = 3; order < 512; ++order) {
    EXPECT_TRUE(order % 4 == 0 || !hadamard_construction(order)) << order;
  }
}

TEST(Hadamard, EachConstructionIsUsedWhereItApplies) {
  const auto expect = [](std::initializer_list<int64_t> orders, FactorKind kind) {
    for (const int64_t order : orders) EXPECT_EQ(hadamard_construction(order), kind) << order;
  };
  expect({2, 4, 8, 256}, FactorKind::kSylvester);
  expect({12, 20, 28, 44, 60, 108, 140, 244}, FactorKind::kPaley1);  // 28, 244: 3³ + 1, 3⁵ + 1
  expect({36, 52, 76, 100, 148}, FactorKind::kPaley2);  // 52, 100: 2(5² + 1), 2(7² + 1)
  expect({92, 116, 156, 172}, FactorKind::kWilliamson);
  expect({40, 184, 1904}, FactorKind::kKronecker);
}

// Tables made by others: both theirs and ours pass.
TEST(Hadamard, PublishedOrdersAreConstructedHere) {
  const auto data = testing::data_folder();
  QUAROT_NEEDS(data);
  for (const int64_t order : {12, 20, 28, 36, 40, 52, 60, 108, 140, 156, 172}) {
    std::ifstream file(*data / "hadamard" / ("had." + std::to_string(order) + ".txt"));
    SignMatrix table(order, order, 0);
    std::string line;
    for (int64_t i = 0; i < order; ++i) {
      ASSERT_TRUE(std::getline(file, line)) << order;
      ASSERT_GE(line.size(), static_cast<size_t>(order));
      for (int64_t j = 0; j < order; ++j) table(i, j) = line[j] == '+' ? 1 : -1;
    }
    EXPECT_TRUE(is_hadamard(table)) << order;
    ASSERT_TRUE(hadamard_construction(order).has_value()) << order;
    EXPECT_TRUE(is_hadamard(hadamard_matrix(order))) << order;
  }
}

TEST(Jacobsthal, SatisfiesItsEquation) {
  for (const int64_t q : {3, 5, 9, 25, 27, 49, 81, 121, 125, 243}) {
    const SignMatrix s = jacobsthal_matrix(q);
    for (int64_t i = 0; i < q; ++i) {
      for (int64_t j = 0; j < q; ++j) {
        int64_t dot = 0;
        for (int64_t k = 0; k < q; ++k) dot += s(i, k) * s(j, k);
        ASSERT_EQ(dot, (i == j ? q : 0) - 1) << q;
        ASSERT_EQ(s(i, j), q % 4 == 1 ? s(j, i) : -s(j, i)) << q;
      }
    }
  }
}

TEST(Jacobsthal, OverAPrimeIsTheLegendreSymbol) {
  const SignMatrix s = jacobsthal_matrix(11);  // squares 1, 3, 4, 5, 9
  const std::vector<int8_t> expected = {0, 1, -1, 1, 1, 1, -1, -1, -1, 1, -1};
  for (int64_t a = 0; a < 11; ++a) EXPECT_EQ(s(a, 0), expected[a]);
}

TEST(Jacobsthal, PrimePowers) {
  for (const int64_t q : {2, 3, 4, 5, 7, 8, 9, 27, 121, 2047 - 4, 15625}) {
    EXPECT_EQ(is_prime_power(q), q != 2043) << q;  // 2043 = 3² · 227
  }
  for (const int64_t q : {-3, 0, 1, 6, 12, 15, 91, 100}) EXPECT_FALSE(is_prime_power(q)) << q;
}

TEST(HadamardPlan, TakesTheSmallestFactor) {
  struct Expected {
    int64_t n, m;
    const char* description;
  };
  for (const Expected& e : std::initializer_list<Expected>{
           {1, 1, "2^0"},
           {64, 1, "2^6"},
           {96, 12, "2^3 x Paley I(12)"},
           {112, 28, "2^2 x Paley I(28)"},
           {152, 76, "2^1 x Paley II(76)"},
           {172, 172, "Williamson(172)"},
           {576, 36, "2^4 x Paley II(36)"},
           {768, 12, "2^6 x Paley I(12)"},
           {896, 28, "2^5 x Paley I(28)"},
           {960, 60, "2^4 x Paley I(60)"},
           {1536, 12, "2^7 x Paley I(12)"},
           {2304, 36, "2^6 x Paley II(36)"},
           {2560, 20, "2^7 x Paley I(20)"},
           {4096, 1, "2^12"},
           {4864, 76, "2^6 x Paley II(76)"},
           {5632, 44, "2^7 x Paley I(44)"},
           {6912, 108, "2^6 x Paley I(108)"},
           {8960, 140, "2^6 x Paley I(140)"},
           {9728, 76, "2^7 x Paley II(76)"},
           {11008, 172, "2^6 x Williamson(172)"},
           {13824, 108, "2^7 x Paley I(108)"},
           {14336, 28, "2^9 x Paley I(28)"},
           {17408, 68, "2^8 x Paley I(68)"},
           {18432, 36, "2^9 x Paley II(36)"},
           {18944, 148, "2^7 x Paley II(148)"},
           {25600, 100, "2^8 x Paley II(100)"},
           {27648, 108, "2^8 x Paley I(108)"},
           {28672, 28, "2^10 x Paley I(28)"},
           {29568, 924, "2^5 x Paley II(924)"},
           {49152, 12, "2^12 x Paley I(12)"},
           {47 * 256, 752, "2^4 x Paley I(752)"},  // neither 188 nor 376
           {119 * 16, 1904, "Kronecker(1904)"},    // neither 476 nor 952
           {13696, 107, "2^7 x DCT(107)"},         // 428 is out of reach
           {7, 7, "DCT(7)"},
           {14, 7, "2^1 x DCT(7)"},
       }) {
    const HadamardPlan plan = plan_hadamard(e.n);
    EXPECT_EQ(plan.n, e.n);
    EXPECT_EQ(plan.m, e.m) << e.n;
    EXPECT_EQ(plan.m << plan.log2, e.n);
    EXPECT_EQ(plan.description, e.description);
    EXPECT_EQ(plan.is_hadamard, plan.kind != FactorKind::kDct);
    EXPECT_EQ(plan.factor.size(), plan.m == 1 ? 0U : static_cast<size_t>(e.m * e.m));
  }
}

TEST(HadamardPlan, EveryFactorIsOrthonormal) {
  for (int64_t n = 1; n <= 160; ++n) {
    const HadamardPlan plan = plan_hadamard(n);
    const int64_t m = plan.factor.empty() ? 0 : plan.m;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < m; ++j) {
        double dot = 0;
        for (int64_t k = 0; k < m; ++k) dot += plan.factor[i * m + k] * plan.factor[j * m + k];
        ASSERT_NEAR(dot, i == j ? 1 : 0, 1e-13) << n;
        ASSERT_LE(std::abs(plan.factor[i * m + j]),
                  std::sqrt(2.0 / static_cast<double>(m)) + 1e-15);
      }
    }
  }
}

// scipy.fft.dct(numpy.eye(3), norm="ortho", axis=0)
TEST(HadamardPlan, TheFallbackIsTheOrthogonalDct) {
  const std::vector<double> expected = {
      0.5773502691896258,  0.5773502691896258, 0.5773502691896258, 0.7071067811865476, 0.0,
      -0.7071067811865476, 0.408248290463863,  -0.816496580927726, 0.408248290463863};
  const HadamardPlan plan = plan_hadamard(3);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(plan.factor[i], expected[i], 1e-15);
}

}  // namespace
}  // namespace quarot
