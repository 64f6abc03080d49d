#include "quant/output_clip.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace quarot {
namespace {

Hessian hessian_of(const std::vector<std::vector<float>>& inputs) {
  Matrix rows(static_cast<int64_t>(inputs.size()), static_cast<int64_t>(inputs[0].size()));
  for (int64_t r = 0; r < rows.rows(); ++r) std::ranges::copy(inputs[r], rows.row(r).begin());
  Hessian hessian(rows.cols());
  hessian.add(rows);
  return hessian;
}

// Row (0.6, 1) of 2 bits: without clipping the grid is {−2, −1, 0, 1} and 0.6 becomes 1. Where only
// the first input speaks, the grid of 0.6 serves: p = 0.6. Where only the second does, p = 1.
TEST(OutputClip, FollowsTheInputsThatSpeak) {
  Matrix weight(1, 2);
  weight(0, 0) = 0.6F;
  weight(0, 1) = 1;
  const WeightQuant q = {.bits = 2};
  const Matrix first = round_with_output_clip(q, weight, hessian_of({{1, 0}})).dequantize();
  EXPECT_NEAR(first(0, 0), 0.6, 1e-6);
  EXPECT_NEAR(first(0, 1), 0.6, 1e-6);
  const Matrix second = round_with_output_clip(q, weight, hessian_of({{0, 1}})).dequantize();
  EXPECT_EQ(second(0, 1), 1.0F);
}

TEST(OutputClip, RowsChooseAlone) {
  Random random(1);
  Matrix weight(8, 32);
  for (float& value : weight.elements()) value = static_cast<float>(random.normal());
  Matrix inputs(40, 32);
  for (float& value : inputs.elements()) value = static_cast<float>(random.normal());
  Hessian hessian(32);
  hessian.add(inputs);
  const WeightQuant q = {.bits = 3, .group = 16, .symmetric = false};
  const QuantizedWeight all = round_with_output_clip(q, weight, hessian);
  for (int64_t r = 0; r < 8; ++r) {
    const QuantizedWeight one =
        round_with_output_clip(q, ConstMatrixRef(weight.view()).rows(r, 1), hessian);
    EXPECT_TRUE(std::ranges::equal(one.values.row(0), all.values.row(r)));
    EXPECT_TRUE(std::ranges::equal(one.scales.row(0), all.scales.row(r)));
  }
}

}  // namespace
}  // namespace quarot
