#include "quant/page_quant.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quarot {
namespace {

Matrix matrix(int64_t rows, const std::vector<float>& values) {
  Matrix m(rows, static_cast<int64_t>(values.size()) / rows);
  std::ranges::copy(values, m.data());
  return m;
}

// 2 bits between 10 and 13: levels 10, 11, 12, 13; zero is none of them.
TEST(SimulatePage, LevelsLieBetweenTheExtremes) {
  Matrix page = matrix(2, {10, 10.4F, 11.6F, 13, -1, -1, 2, 0.6F});
  simulate_page(2, 1, 4, 0, page);
  EXPECT_TRUE(
      std::ranges::equal(page.elements(), std::vector<float>{10, 10, 12, 13, -1, -1, 2, 1}));
  // Groups of two: their own extremes, so exact.
  const std::vector<float> pairs = {10, 10.4F, 11.6F, 13, -1, -1, 2, 0.6F};
  page = matrix(2, pairs);
  simulate_page(2, 1, 2, 0, page);
  for (size_t i = 0; i < pairs.size(); ++i) EXPECT_NEAR(page.elements()[i], pairs[i], 1e-6);
}

// Half the range about its middle, 11.5: from 10.75 to 12.25.
TEST(SimulatePage, ClipsFromBothEnds) {
  Matrix page = matrix(1, {10, 11.3F, 11.6F, 13});
  simulate_page(2, 0.5F, 4, 0, page);
  EXPECT_TRUE(
      std::ranges::equal(page.elements(), std::vector<float>{10.75F, 11.25F, 11.75F, 12.25F}));
}

TEST(SimulatePage, OutliersStayAndDoNotStretchTheScale) {
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 4);
  values[5] = 1000.25F;
  values[40] = -70.125F;
  Matrix page = matrix(2, values);
  simulate_page(2, 1, 32, 2.0 / 64, page);  // 0 … 3 are the levels again
  EXPECT_TRUE(std::ranges::equal(page.elements(), values));
  simulate_page(2, 1, 32, 1.0 / 64, page);
  EXPECT_EQ(page(0, 5), 1000.25F);
  EXPECT_EQ(page(1, 8), -70.125F);  // the end of its group's range now
  EXPECT_NE(page(1, 9), values[41]);
}

TEST(PageQuant, ChecksItsNumbers) {
  EXPECT_TRUE(check(PageQuant{.recent = 64, .outliers = 0.01}, 32).ok());
  EXPECT_FALSE(check(PageQuant{.recent = 40}, 32).ok());
  EXPECT_FALSE(check(PageQuant{.recent = -32}, 32).ok());
  EXPECT_FALSE(check(PageQuant{.outliers = 1}, 32).ok());
}

}  // namespace
}  // namespace quarot
