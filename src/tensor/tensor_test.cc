#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "base/random.h"
#include "tensor/dtype.h"
#include "tensor/gemm.h"
#include "tensor/gemm_kernel.h"
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

// The bits are part of the definition: see gemm.h.
Matrix chains(const Matrix& x, const Matrix& w, const Matrix* start) {
  Matrix y(x.rows(), w.rows(), 0.0F);
  for (int64_t r = 0; r < y.rows(); ++r) {
    for (int64_t c = 0; c < y.cols(); ++c) {
      if (start != nullptr) y(r, c) = (*start)(r, c);
      for (int64_t first = 0; first < x.cols(); first += kChain) {
        float sum = 0;
        for (int64_t k = first; k < std::min(first + kChain, x.cols()); ++k)
          sum = std::fma(x(r, k), w(c, k), sum);
        y(r, c) += sum;
      }
    }
  }
  return y;
}

TEST(Gemm, IsChainsInOneOrder) {
  const int threads = thread_count();
  for (const auto& [t, in, out] : {std::tuple{1, 5, 3},
                                   {7, 64, 33},
                                   {40, 1, 2},
                                   {13, 256, 32},
                                   {300, 300, 70},
                                   {2, 515, 1030},
                                   {12, 33, 513}}) {
    const Matrix x = random_matrix(t, in, 1);
    const Matrix w = random_matrix(out, in, 2);
    Matrix wt(in, out);
    for (int64_t r = 0; r < out; ++r) {
      for (int64_t c = 0; c < in; ++c) wt(c, r) = w(r, c);
    }
    const Matrix start = random_matrix(t, out, 3);
    for (const bool accumulate : {false, true}) {
      const Matrix expected = chains(x, w, accumulate ? &start : nullptr);
      for (const int count : {1, 3}) {
        set_thread_count(count);
        Matrix y = start;
        matmul_transposed(x, w, y, accumulate);
        Matrix z = start;
        matmul(x, wt, z, accumulate);
        EXPECT_TRUE(std::ranges::equal(y.elements(), expected.elements())) << t << " " << in;
        EXPECT_TRUE(std::ranges::equal(z.elements(), expected.elements())) << t << " " << in;
      }
    }
  }
  set_thread_count(threads);
}

TEST(Gemm, EveryVectorWidthGivesTheSameBits) {
  for (const VectorWidth width :
       {VectorWidth::kBaseline, VectorWidth::kAvx2, VectorWidth::kAvx512}) {
    if (!available(width)) continue;
    const GemmKernel kernel = gemm_kernel(width);
    for (const int64_t inner : {0, 1, 77}) {
      const Matrix a = random_matrix(inner, kernel.rows, 1);
      const Matrix b = random_matrix(inner, kernel.cols, 2);
      Matrix tile = random_matrix(kernel.rows, kernel.cols, 3);
      Matrix expected(kernel.rows, kernel.cols, 0.0F);
      for (int64_t k = 0; k < inner; ++k) {
        for (int64_t r = 0; r < kernel.rows; ++r) {
          for (int64_t c = 0; c < kernel.cols; ++c)
            expected(r, c) = std::fma(a(k, r), b(k, c), expected(r, c));
        }
      }
      kernel.run(inner, a.data(), b.data(), tile.data());
      EXPECT_TRUE(std::ranges::equal(tile.elements(), expected.elements()));
    }
  }
}

// A view within a larger matrix: what surrounds it is neither read nor written.
TEST(Gemm, KeepsToItsViews) {
  Matrix x(5, 9, std::numeric_limits<float>::quiet_NaN());
  Matrix w(6, 9, std::numeric_limits<float>::quiet_NaN());
  for (int64_t r = 1; r < 4; ++r) std::ranges::fill(x.row(r).subspan(2, 5), 1.0F);
  for (int64_t r = 1; r < 5; ++r) std::ranges::fill(w.row(r).subspan(2, 5), 2.0F);
  Matrix y(5, 7, -1.0F);
  matmul_transposed(x.view().rows(1, 3).cols(2, 5), w.view().rows(1, 4).cols(2, 5),
                    y.view().rows(1, 3).cols(2, 4));
  for (int64_t r = 0; r < y.rows(); ++r) {
    for (int64_t c = 0; c < y.cols(); ++c)
      EXPECT_EQ(y(r, c), r >= 1 && r < 4 && c >= 2 && c < 6 ? 10.0F : -1.0F);
  }
}

TEST(Gemm, NoInnerDimensionGivesZero) {
  Matrix y(2, 2, 7.0F);
  matmul_transposed(Matrix(2, 0), Matrix(2, 0), y);
  for (const float v : y.elements()) EXPECT_EQ(v, 0.0F);
}

}  // namespace
}  // namespace quarot
