// The inner loops against the definition, on every vector width that the machine has.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "rotation/fast_transform.h"

namespace quarot {
namespace {

constexpr VectorWidth kWidths[] = {VectorWidth::kBaseline, VectorWidth::kAvx2,
                                   VectorWidth::kAvx512};

template <typename T>
std::vector<T> gaussian(int64_t n, uint64_t seed) {
  Random random(seed);
  std::vector<T> x(static_cast<size_t>(n));
  for (T& v : x) v = static_cast<T>(random.normal());
  return x;
}

template <typename T>
std::vector<T> transformed(const FastTransform& transform, std::vector<T> x, bool transposed,
                           VectorWidth width) {
  std::vector<T> scratch(static_cast<size_t>(transform.scratch_size<T>()));
  transform.apply(x.data(), scratch.data(), transposed, transform_kernels<T>(width));
  return x;
}

// H_m ⊗ Walsh(2^log2), entry by entry.
double entry(const HadamardPlan& plan, int64_t i, int64_t j) {
  const int64_t w = int64_t{1} << plan.log2;
  const double factor = plan.m == 1 ? 1 : plan.factor[i / w * plan.m + j / w];
  const bool minus = std::popcount(static_cast<uint64_t>(i % w & j % w)) % 2 == 1;
  return (minus ? -factor : factor) / std::sqrt(static_cast<double>(w));
}

void expect_equals_definition(int64_t n, int64_t inner) {
  const FastTransform transform(plan_hadamard(n), inner);
  const auto x = gaussian<double>(n * inner, static_cast<uint64_t>(n));
  for (const bool transposed : {false, true}) {
    const auto y = transformed(transform, x, transposed, VectorWidth::kBaseline);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < inner; ++c) {
        double sum = 0;
        for (int64_t j = 0; j < n; ++j) {
          sum += x[j * inner + c] *
                 (transposed ? entry(transform.plan(), j, i) : entry(transform.plan(), i, j));
        }
        ASSERT_NEAR(y[i * inner + c] * transform.scale(), sum, 1e-11) << n << " x " << inner;
      }
    }
  }
}

TEST(FastTransform, EqualsTheDenseMatrix) {
  for (const int64_t n :
       {1,   2,   3,   4,   8,   12,  16,  20,  32,  64,  96,   107,  112,  128,
        152, 172, 192, 214, 224, 256, 512, 576, 768, 896, 1024, 1536, 2048, 2304}) {
    expect_equals_definition(n, 1);
  }
}

TEST(FastTransform, EqualsTheDenseMatrixAcrossGroups) {
  for (const int64_t n : {2, 7, 12, 28, 32, 36, 40}) {
    for (const int64_t inner : {2, 3, 16, 37, 64}) expect_equals_definition(n, inner);
  }
}

template <typename T>
void expect_same_bits(int64_t n, int64_t inner) {
  const FastTransform transform(plan_hadamard(n), inner);
  const auto x = gaussian<T>(n * inner, 5);
  for (const bool transposed : {false, true}) {
    const auto y = transformed(transform, x, transposed, VectorWidth::kBaseline);
    for (const VectorWidth width : kWidths) {
      if (available(width)) {
        RC_ASSERT(transformed(transform, x, transposed, width) == y);
      }
    }
  }
}

RC_GTEST_PROP(FastTransform, EveryVectorWidthGivesTheSameBits, ()) {
  const auto n = *rc::gen::inRange<int64_t>(1, 600);
  const auto inner = *rc::gen::element<int64_t>(1, 2, 5, 8, 16, 24);
  expect_same_bits<float>(n, inner);
  expect_same_bits<double>(n, inner);
}

RC_GTEST_PROP(FastTransform, TheTransposeIsTheInverse, ()) {
  const auto n = *rc::gen::inRange<int64_t>(1, 3001);
  const FastTransform transform(plan_hadamard(n), 1);
  const auto x = gaussian<double>(n, 7);
  const auto y = transformed(transform, x, false, VectorWidth::kBaseline);
  const auto z = transformed(transform, y, true, VectorWidth::kBaseline);
  double before = 0;
  double after = 0;
  for (int64_t i = 0; i < n; ++i) {
    RC_ASSERT(std::abs(z[i] * transform.scale() * transform.scale() - x[i]) < 1e-12);
    before += x[i] * x[i];
    after += y[i] * y[i] * transform.scale() * transform.scale();
  }
  RC_ASSERT(std::abs(after - before) < 1e-12 * before);
}

// Small integers have exact sums in any order.
TEST(SignProduct, IsExactOnIntegers) {
  for (const int64_t m : {12, 28, 172}) {
    const SignMatrix h = hadamard_matrix(m);
    const FastTransform transform(plan_hadamard(m), 5);
    std::vector<float> x(static_cast<size_t>(5 * m));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * i % 97) - 40;
    const auto y = transformed(transform, x, false, VectorWidth::kBaseline);
    const auto yt = transformed(transform, x, true, VectorWidth::kBaseline);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t c = 0; c < 5; ++c) {
        float sum = 0;
        float sum_transposed = 0;
        for (int64_t j = 0; j < m; ++j) {
          sum += static_cast<float>(h(i, j)) * x[5 * j + c];
          sum_transposed += static_cast<float>(h(j, i)) * x[5 * j + c];
        }
        ASSERT_EQ(y[5 * i + c], sum);
        ASSERT_EQ(yt[5 * i + c], sum_transposed);
      }
    }
  }
}

}  // namespace
}  // namespace quarot
