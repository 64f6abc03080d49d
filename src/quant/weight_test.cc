// Weights: grids, clip search, rounding to nearest. The constants marked "reference" were computed
// once with PyTorch float32 from the definition of GPTQ's WeightQuantizer with mse.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "base/random.h"
#include "quant/clip_search.h"
#include "quant/quantizer.h"

namespace quarot {
namespace {

std::vector<float> example() {
  std::vector<float> x(32);
  for (int i = 0; i < 32; ++i) x[i] = static_cast<float>((i * 37 % 23) - 11) * 0.173F;
  x[5] = 4.5F;
  return x;
}

// Normal, or with the tails of Student's t with 3 degrees of freedom.
std::vector<float> random_row(int64_t width, Random& random, bool heavy) {
  std::vector<float> row(width);
  for (float& w : row) {
    double v = random.normal();
    if (heavy) {
      double chi = 0;
      for (int i = 0; i < 3; ++i) chi += std::pow(random.normal(), 2);
      v /= std::sqrt(chi / 3);
    }
    w = static_cast<float>(0.02 * v);
  }
  return row;
}

Grid grid_at(const WeightQuant& q, std::span<const float> w, float p) {
  WeightQuant fixed = q;
  fixed.search_clip = false;
  fixed.clip = p;
  return weight_grid(fixed, w);
}

// Σ|q − w|^2.4 by the definition, with pow in double.
double clip_error(const Grid& grid, std::span<const float> w) {
  double sum = 0;
  for (const float x : w) sum += std::pow(std::fabs(double{grid.simulate(x)} - x), 2.4);
  return sum;
}

struct Reference {
  int bits;
  bool symmetric;
  float scale;
  int zero;
  std::vector<int> values;
};

TEST(Weights, ClipSearchReference) {
  const std::vector<Reference> references{
      {4, true, 0.604285717F, 0, {-3, 1,  -2, 2, 0,  7, 1,  -1, 3, 0,  -3, 1, -1, 3, 0,  -2,
                                  2,  -1, 3,  1, -2, 2, -1, -3, 1, -2, 2,  0, -3, 1, -1, 3}},
      {3, true, 1.20000005F, 0, {-2, 0, -1, 1, 0,  3, 1, -1, 1, 0,  -1, 1, -1, 1, 0,  -1,
                                 1,  0, 2,  0, -1, 1, 0, -2, 0, -1, 1,  0, -1, 1, -1, 1}},
      {2, true, 1.66499996F, 0, {-1, 0, -1, 1, 0,  1, 0, -1, 1, 0,  -1, 1, 0,  1, 0,  -1,
                                 1,  0, 1,  0, -1, 1, 0, -1, 0, -1, 1,  0, -1, 0, -1, 1}},
      {4, false, 0.426866651F, 4, {0, 5, 2, 7, 4, 15, 6, 2, 8, 4, 0, 6, 2, 8, 4, 1,
                                   6, 3, 8, 5, 1, 7,  3, 0, 5, 2, 7, 4, 0, 6, 2, 8}},
      {3, false, 0.841537118F, 2, {0, 3, 1, 4, 2, 7, 3, 1, 4, 2, 0, 3, 1, 4, 2, 0,
                                   3, 1, 4, 2, 1, 3, 2, 0, 3, 1, 4, 2, 0, 3, 1, 4}}};
  std::vector<float> w = example();
  for (const Reference& e : references) {
    SCOPED_TRACE(e.bits);
    const QuantizedWeight result = round_to_nearest({.bits = e.bits, .symmetric = e.symmetric},
                                                    ConstMatrixRef(w.data(), 1, 32));
    const int offset = e.symmetric ? 0 : 1 << (e.bits - 1);
    EXPECT_NEAR(result.scales(0, 0), e.scale, 1e-7F);
    EXPECT_EQ(result.zeros(0, 0), e.zero - offset);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(result.values(0, i), e.values[i] - offset) << i;
  }
}

TEST(Weights, ClipSearchFindsWhatExactPowersFind) {
  Random random(11);
  for (int trial = 0; trial < 400; ++trial) {
    const WeightQuant q{.bits = static_cast<int>(2 + random.below(7)),
                        .symmetric = random.below(2) == 0};
    const int64_t width = std::vector<int64_t>{1, 17, 64, 128, 576, 1536}[random.below(6)];
    const std::vector<float> w = random_row(width, random, random.below(2) == 0);
    double least = std::numeric_limits<double>::infinity();
    int best = -1;
    for (int i = 0; i < kClipCandidates; ++i) {
      const double e = clip_error(grid_at(q, w, clip_candidate(i)), w);
      if (e < least) least = e, best = i;
    }
    const Grid found = weight_grid(q, w);
    if (found.scale != grid_at(q, w, clip_candidate(best)).scale) {  // a near-tie
      EXPECT_NEAR(clip_error(found, w) / least, 1, 4e-6) << q.bits << " bits, width " << width;
    }
  }
}

TEST(Weights, CandidatesRunFromOneTo21Hundredths) {
  EXPECT_EQ(clip_candidate(0), 1.0F);
  EXPECT_EQ(clip_candidate(10), 0.9F);
  EXPECT_EQ(clip_candidate(kClipCandidates - 1), 0.21F);
}

TEST(Weights, AnExactRowIsNotClipped) {
  std::vector<float> w;
  for (int i = -7; i <= 7; ++i) w.push_back(0.25F * static_cast<float>(i));
  const Grid grid = weight_grid({.bits = 4}, w);
  EXPECT_EQ(grid.scale, 0.25F);
  for (const float x : w) EXPECT_EQ(grid.simulate(x), x);
}

TEST(Weights, AsymmetricGridStartsAtZeroForPositiveRows) {
  const std::vector<float> w{0.5F, 1.0F, 3.75F};
  const Grid grid = weight_grid({.bits = 4, .symmetric = false, .search_clip = false}, w);
  EXPECT_EQ(grid.scale, 0.25F);
  EXPECT_EQ(grid.zero, -8);
  EXPECT_EQ(grid.quantize(3.75F), 7);
  EXPECT_EQ(grid.simulate(0.5F), 0.5F);
}

TEST(Weights, ExtremesStayFinite) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> rows{{0, 0, 0, 0},
                                             {FLT_MIN, 0, -FLT_MIN, 1e-42F},
                                             {1e-45F, -1e-45F, 0, 0},
                                             {FLT_MAX, -FLT_MAX, 1, 0},
                                             {kInf, 1, -1, 0},
                                             {kNan, 1, -1, kNan},
                                             {-kInf, kInf, kNan, FLT_MAX},
                                             {FLT_MIN * 200, -FLT_MIN, 0, 0}};
  for (int bits = 2; bits <= 8; ++bits) {
    for (const bool symmetric : {true, false}) {
      for (const auto& row : rows) {
        const QuantizedWeight result = round_to_nearest({.bits = bits, .symmetric = symmetric},
                                                        ConstMatrixRef(row.data(), 1, 4));
        EXPECT_TRUE(std::isnormal(result.scales(0, 0)));
        EXPECT_GT(result.scales(0, 0), 0);
        const Matrix back = result.dequantize();
        for (int i = 0; i < 4; ++i) {
          EXPECT_TRUE(std::isfinite(back(0, i)));
          if (std::isnan(row[i]) || row[i] == 0) {
            EXPECT_EQ(back(0, i), 0);
          }
        }
      }
    }
  }
}

RC_GTEST_PROP(Weights, DequantisedEqualsTheGridsSimulation, (uint64_t seed, bool symmetric)) {
  Random random(seed);
  const WeightQuant q{.bits = *rc::gen::inRange(2, 9),
                      .group = *rc::gen::element(0, 16, 32),
                      .symmetric = symmetric,
                      .search_clip = *rc::gen::arbitrary<bool>(),
                      .clip = 0.8F};
  const std::vector<float> w = random_row(64 * 3, random, true);
  const QuantizedWeight result = round_to_nearest(q, ConstMatrixRef(w.data(), 3, 64));
  const Matrix back = result.dequantize();
  const int64_t group = group_size(q, 64);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t g = 0; g < 64 / group; ++g) {
      const auto x = std::span<const float>(w).subspan(r * 64 + g * group, group);
      const Grid grid = weight_grid(q, x);
      RC_ASSERT(grid.scale == result.scales(r, g) && grid.zero == result.zeros(r, g));
      for (int64_t c = 0; c < group; ++c) {
        RC_ASSERT(grid.quantize(x[c]) == result.values(r, g * group + c));
        RC_ASSERT(grid.simulate(x[c]) == back(r, g * group + c));
        RC_ASSERT(grid.quantize(x[c]) >= grid.lowest && grid.quantize(x[c]) <= grid.highest);
      }
    }
  }
}

TEST(Weights, ThreadsChangeNothing) {
  Random random(3);
  const std::vector<float> w = random_row(300 * 256, random, true);
  const ConstMatrixRef weight(w.data(), 300, 256);
  const int threads = thread_count();
  set_thread_count(1);
  const QuantizedWeight one = round_to_nearest({.bits = 4, .group = 64}, weight);
  set_thread_count(3);
  const QuantizedWeight three = round_to_nearest({.bits = 4, .group = 64}, weight);
  set_thread_count(threads);
  EXPECT_TRUE(std::ranges::equal(one.values.elements(), three.values.elements()));
  EXPECT_TRUE(std::ranges::equal(one.scales.elements(), three.scales.elements()));
}

}  // namespace
}  // namespace quarot
