#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "tensor/dtype.h"
#include "tensor/gemm.h"
#include "tensor/matrix.h"

namespace quarot {
namespace {

TEST(Dtype, EveryHalfRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = f16_to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value))));
    } else {
      EXPECT_EQ(float_to_f16(value), half) << bits;
    }
    const float wide = bf16_to_float(half);
    if (!std::isnan(wide)) {
      EXPECT_EQ(float_to_bf16(wide), half);
    }
  }
}

TEST(Dtype, KnownHalves) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0F);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(float_to_f16(65519.0F), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_f16(1.0F + 0x1p-11F), 0x3c00);  // a tie goes to even
  EXPECT_EQ(float_to_f16(1.0F + 3 * 0x1p-11F), 0x3c02);
  EXPECT_EQ(float_to_bf16(1.0F + 0x1p-8F), 0x3f80);
}

Matrix random_matrix(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix m(rows, cols);
  for (float& x : m.elements()) x = static_cast<float>(random.normal());
  return m;
}

TEST(Gemm, EqualsTheDefinition) {
  for (const auto& [t, in, out] : {std::tuple{1, 5, 3}, {7, 64, 33}, {40, 1, 2}}) {
    const Matrix x = random_matrix(t, in, 1);
    const Matrix w = random_matrix(out, in, 2);
    Matrix y(t, out, 1.0F);
    matmul_transposed(x, w, y, true);
    for (int64_t r = 0; r < t; ++r) {
      for (int64_t c = 0; c < out; ++c) {
        double sum = 1;
        for (int64_t k = 0; k < in; ++k) sum += double{x(r, k)} * w(c, k);
        EXPECT_NEAR(y(r, c), sum, 1e-4);
      }
    }
    Matrix wt(in, out);
    for (int64_t r = 0; r < out; ++r) {
      for (int64_t c = 0; c < in; ++c) wt(c, r) = w(r, c);
    }
    Matrix z(t, out);
    matmul(x, wt, z);
    for (int64_t i = 0; i < z.size(); ++i) EXPECT_NEAR(z.data()[i] + 1, y.data()[i], 1e-4);
  }
}

TEST(Gemm, NoInnerDimensionGivesZero) {
  Matrix y(2, 2, 7.0F);
  matmul_transposed(Matrix(2, 0), Matrix(2, 0), y);
  for (const float v : y.elements()) EXPECT_EQ(v, 0.0F);
}

}  // namespace
}  // namespace quarot
