// The search for clip ratios, on rows small enough for a pencil and on many.
#include "recipe/activation_clips.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "tensor/gemm.h"

namespace quarot {
namespace {

Matrix normal(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix result(rows, cols);
  for (float& x : result.elements()) x = static_cast<float>(random.normal());
  return result;
}

// A layer whose linears all have this weight and whose sites all carry these rows.
SiteClips clips_of(int bits, const Matrix& weight, const Matrix& rows) {
  Recipe recipe;
  recipe.precision.activations = {.bits = bits, .search_clip = true};
  Layer layer;
  for (Linear& linear : layer.linears) linear.weight = weight;
  SiteSamples inputs;
  inputs.fill(rows);
  return search_clips(recipe, 0, layer, inputs);
}

SiteClips everywhere(float clip) {
  SiteClips clips;
  clips.fill(clip);
  return clips;
}

// x = (7, 0.8) of 4 bits has the scale c: at 1 the second channel becomes 1; at 0.8 it is exact,
// and the first, at most 7 scales, becomes 5.6.
TEST(SearchClips, AsksWhatTheWeightsRead) {
  Matrix row(1, 2);
  row(0, 0) = 7;
  row(0, 1) = 0.8F;
  Matrix ignores(1, 2, 0.0F);
  ignores(0, 1) = 1;
  EXPECT_EQ(clips_of(4, ignores, row), everywhere(0.8F));
  Matrix both(2, 2, 0.0F);
  both(0, 0) = both(1, 1) = 1;
  EXPECT_EQ(clips_of(4, both, row), everywhere(1));
  // More outputs than are told apart.
  Matrix many(1000, 2, 0.0F);
  for (int64_t r = 0; r < many.rows(); ++r) many(r, 1) = static_cast<float>(r);
  EXPECT_EQ(clips_of(4, many, row), everywhere(0.8F));
  for (int64_t r = 0; r < many.rows(); ++r) many(r, 0) = 1000;
  EXPECT_EQ(clips_of(4, many, row), everywhere(1));
}

TEST(SearchClips, OneRatioForARowOfZeros) {
  EXPECT_EQ(clips_of(4, Matrix(1, 2, 1.0F), Matrix(3, 2, 0.0F)), everywhere(1));
}

TEST(SearchClips, FewerBitsAreClippedMore) {
  const Matrix rows = normal(64, 256, 1);
  const Matrix weight = normal(100, 256, 2);
  EXPECT_EQ(clips_of(8, weight, rows), everywhere(1));
  const float at_4 = clips_of(4, weight, rows)[0];
  EXPECT_LT(at_4, 1);
  EXPECT_LT(clips_of(3, weight, rows)[0], at_4);
}

// What the estimate chooses is as good as the best, or nearly: of errors of rank 64 in 128
// combinations its standard deviation is √(2 / (128·64)), 1.6 %.
TEST(SearchClips, EstimatesTheErrorOfManyOutputs) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Matrix rows = normal(64, 96, 3 * seed);
    const Matrix weight = normal(700, 96, 3 * seed + 1);
    const auto error = [&](float clip) {
      Matrix change(rows.view());
      simulate(ActivationQuant{.bits = 4, .clip = clip}, change);
      for (int64_t i = 0; i < change.size(); ++i) change.data()[i] -= rows.data()[i];
      Matrix outputs(rows.rows(), weight.rows());
      matmul_transposed(change, weight, outputs);
      double sum = 0;
      for (const float y : outputs.elements()) sum += double{y} * y;
      return sum;
    };
    double least = error(1);
    for (int i = 1; i < 9; ++i) least = std::min(least, error(1 - 0.05F * static_cast<float>(i)));
    for (const float clip : clips_of(4, weight, rows)) EXPECT_LT(error(clip), 1.05 * least);
  }
}

}  // namespace
}  // namespace quarot
