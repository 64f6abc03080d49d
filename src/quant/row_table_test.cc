#include "quant/row_table.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "tensor/dtype.h"

namespace quarot {
namespace {

Matrix random_matrix(int64_t rows, int64_t cols) {
  Random random(static_cast<uint64_t>(rows * 1000 + cols));
  Matrix m(rows, cols);
  for (float& v : m.elements()) v = static_cast<float>(random.normal());
  return m;
}

void expect_equal(const Matrix& got, const Matrix& expected) {
  ASSERT_EQ(got.rows(), expected.rows());
  ASSERT_EQ(got.cols(), expected.cols());
  for (int64_t i = 0; i < got.size(); ++i) ASSERT_EQ(got.data()[i], expected.data()[i]) << i;
}

constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1}, {16, 8}, {17, 9}, {40, 576}, {33, 31}};

TEST(RowTable, KeepsFloatsAndRoundsToHalves) {
  for (const auto& [rows, cols] : kShapes) {
    const Matrix m = random_matrix(rows, cols);
    expect_equal(RowTable(m).to_matrix(), m);
    for (const Storage storage : {Storage::kF16, Storage::kBF16}) {
      Matrix rounded(rows, cols);
      for (int64_t i = 0; i < m.size(); ++i) {
        rounded.data()[i] = storage == Storage::kF16 ? f16_to_float(float_to_f16(m.data()[i]))
                                                     : bf16_to_float(float_to_bf16(m.data()[i]));
      }
      RowTable table(rows, cols, storage);
      // In two parts, the second over the first's last row.
      table.set_rows(0, m.view().rows(0, (rows + 1) / 2));
      table.set_rows(rows / 2, m.view().rows(rows / 2, rows - rows / 2));
      expect_equal(table.to_matrix(), rounded);
    }
  }
}

TEST(RowTable, DequantisesAsTheQuantiserDoes) {
  for (const auto& [rows, cols] : kShapes) {
    for (const int bits : {4, 8}) {
      for (const int64_t group : {int64_t{0}, cols % 32 == 0 ? int64_t{32} : cols}) {
        const WeightQuant quant{.bits = bits, .group = group, .search_clip = false};
        const QuantizedWeight weight = round_to_nearest(quant, random_matrix(rows, cols));
        expect_equal(RowTable(weight).to_matrix(), weight.dequantize());
      }
    }
  }
}

TEST(RowTable, TakesTheBytesOfItsElements) {
  EXPECT_EQ(RowTable(32, 64, Storage::kF32).bytes(), 32 * 64 * 4);
  EXPECT_EQ(RowTable(32, 64, Storage::kBF16).bytes(), 32 * 64 * 2);
  EXPECT_EQ(RowTable(32, 64, Storage::kInt8).bytes(), 32 * 64 + 32 * 4);
  EXPECT_EQ(RowTable(32, 64, Storage::kInt4, 2).bytes(), 32 * 64 / 2 + 2 * 32 * 4);
}

}  // namespace
}  // namespace quarot
