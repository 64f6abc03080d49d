#include "rotation/flat_basis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "base/random.h"

namespace quarot {
namespace {

Orthogonal learned(const Matrix& rows, const Orthogonal& start) {
  NoProgress progress;
  Result<Orthogonal> basis = learn_flat_basis(Matrix(rows.view()), start, progress);
  EXPECT_TRUE(basis.ok());
  return *basis;
}

// Mean of max |B·x|·√n / ‖x‖: 1 where all magnitudes are the same, √n where one is alone.
double peak(const Orthogonal& basis, const Matrix& rows) {
  Matrix turned(rows.view());
  basis.apply(turned);
  double sum = 0;
  for (int64_t r = 0; r < rows.rows(); ++r) {
    double largest = 0;
    double squares = 0;
    for (const double x : turned.row(r)) {
      largest = std::max(largest, std::abs(x));
      squares += x * x;
    }
    sum += largest * std::sqrt(static_cast<double>(rows.cols()) / squares);
  }
  return sum / static_cast<double>(rows.rows());
}

// Gaussian, most of it in a few directions, as a residual stream is.
Matrix loud_rows(int64_t count, uint64_t seed) {
  constexpr int64_t kSize = 24;
  const Orthogonal directions = Orthogonal::random(kSize, 7);
  Random random(seed);
  Matrix rows(count, kSize);
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < kSize; ++c)
      rows(r, c) = static_cast<float>((c < 3 ? 8 : 1) * random.normal());
  }
  directions.apply(rows);
  return rows;
}

// All rows point the same way, so there is a basis in which every coordinate has one magnitude.
TEST(FlatBasis, FlattensOneDirection) {
  Random random(1);
  Matrix rows(8, 16);
  for (int64_t c = 0; c < 16; ++c) rows(0, c) = static_cast<float>(random.normal());
  for (int64_t r = 1; r < 8; ++r) {
    for (int64_t c = 0; c < 16; ++c) rows(r, c) = rows(0, c) * static_cast<float>(r + 1);
  }
  const Orthogonal start = Orthogonal::random(16, 2);
  EXPECT_GT(peak(start, rows), 1.5);
  EXPECT_LT(peak(learned(rows, start), rows), 1.05);
}

TEST(FlatBasis, FlattensRowsItHasNotSeen) {
  const Orthogonal start = Orthogonal::randomised_hadamard(24, 3);
  const Orthogonal basis = learned(loud_rows(2000, 1), start);
  const Matrix others = loud_rows(500, 2);
  EXPECT_LT(peak(basis, others), 0.9 * peak(start, others));
}

TEST(FlatBasis, HasTheSameBitsWithAnyNumberOfThreads) {
  const Matrix rows = loud_rows(1500, 1);
  const Orthogonal start = Orthogonal::randomised_hadamard(24, 3);
  const int threads = thread_count();
  set_thread_count(1);
  const BasicMatrix<double> one = learned(rows, start).matrix();
  set_thread_count(3);
  const BasicMatrix<double> three = learned(rows, start).matrix();
  set_thread_count(threads);
  EXPECT_TRUE(std::ranges::equal(one.elements(), three.elements()));
}

TEST(FlatBasis, StaysWhereNothingIsToBeLearned) {
  const Orthogonal start = Orthogonal::randomised_hadamard(24, 3);
  const Matrix zeros(4, 24, 0.0F);
  const BasicMatrix<double> basis = learned(zeros, start).matrix();
  EXPECT_TRUE(std::ranges::equal(basis.elements(), start.matrix().elements()));
}

}  // namespace
}  // namespace quarot
