#include "kernels/cpu/table.h"

#include <cmath>

#include "base/parallel.h"
#include "base/random.h"
#include "kernels/cpu/kernels_test.h"

namespace quarot::cpu {
namespace {

Matrix random_matrix(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix m(rows, cols);
  for (float& v : m.elements()) v = static_cast<float>(random.normal());
  return m;
}

std::vector<RowTable> tables_of(const Matrix& w, int64_t group) {
  std::vector<RowTable> tables = {RowTable(w)};
  for (const Storage storage : {Storage::kF16, Storage::kBF16}) {
    tables.emplace_back(w.rows(), w.cols(), storage).set_rows(0, w);
  }
  for (const int bits : {8, 4}) {
    tables.emplace_back(round_to_nearest({.bits = bits, .group = group, .search_clip = false}, w));
  }
  return tables;
}

// What the product means, one operation after the other.
Matrix expected(const Matrix& x, const RowTable& table, std::span<const float> bias,
                const Matrix& old, bool accumulate) {
  const Matrix w = table.to_matrix();
  Matrix y(x.rows(), w.rows());
  for (int64_t t = 0; t < x.rows(); ++t) {
    for (int64_t n = 0; n < w.rows(); ++n) {
      float sum = 0;
      for (int64_t c = 0; c < x.cols(); ++c) sum = std::fma(x(t, c), w(n, c), sum);
      if (!bias.empty()) sum += bias[static_cast<size_t>(n)];
      y(t, n) = accumulate ? old(t, n) + sum : sum;
    }
  }
  return y;
}

class TableTest : public KernelsTest {};

TEST_P(TableTest, EqualsItsMeaning) {
  struct Shape {
    int64_t rows, outputs, inputs, group;
  };
  const Shape shapes[] = {{1, 1, 1, 0},     {1, 64, 64, 0},    {1, 200, 576, 0},
                          {2, 33, 72, 24},  {3, 80, 129, 0},   {4, 17, 256, 128},
                          {5, 48, 1100, 0}, {6, 16, 40, 8},    {13, 100, 600, 0},
                          {29, 31, 7, 0},   {97, 49, 192, 32}, {200, 70, 64, 0}};
  uint64_t seed = 0;
  for (const Shape& s : shapes) {
    const Matrix x = random_matrix(s.rows, s.inputs, ++seed);
    const Matrix bias = random_matrix(1, s.outputs, ++seed);
    for (const RowTable& table : tables_of(random_matrix(s.outputs, s.inputs, ++seed), s.group)) {
      const bool accumulate = seed % 2 == 0;
      const auto b = seed % 4 < 2 ? std::span<const float>() : bias.row(0);
      const Matrix old = random_matrix(s.rows, s.outputs, ++seed);
      Matrix y(old.view());
      multiply(kernels(), x, table, y, b, accumulate);
      EXPECT_TRUE(same_bits(y, expected(x, table, b, old, accumulate)))
          << s.rows << " x " << s.outputs << " x " << s.inputs << " in groups of " << s.group
          << ", storage " << static_cast<int>(table.storage());
    }
  }
}

TEST_P(TableTest, ThreadsAndOtherRowsChangeNothing) {
  const Matrix x = random_matrix(150, 576, 1);
  const int threads = thread_count();
  for (const RowTable& table : tables_of(random_matrix(300, 576, 2), 0)) {
    Matrix whole(x.rows(), table.rows());
    multiply(kernels(), x, table, whole);
    for (const int count : {1, 2, 3}) {
      set_thread_count(count);
      for (const int64_t rows : {1, 2, 3, 4, 5, 11, 100}) {
        Matrix part(rows, table.rows());
        multiply(kernels(), x.view().rows(37, rows), table, part);
        EXPECT_TRUE(same_bits(part, Matrix(whole.view().rows(37, rows)))) << rows;
      }
    }
    set_thread_count(threads);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, TableTest, every_isa(), isa_name);

}  // namespace
}  // namespace quarot::cpu
