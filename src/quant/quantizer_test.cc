// Activations and KV cache. The constants marked "reference" were computed once with PyTorch
// float32 from the definitions of QuaRot's quantisers (torch.round, torch.clamp).
#include "quant/quantizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cfenv>
#include <cfloat>
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "base/random.h"

namespace quarot {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Matrix example() {
  Matrix x(1, 32);
  for (int i = 0; i < 32; ++i) x(0, i) = static_cast<float>((i * 37 % 23) - 11) * 0.173F;
  x(0, 5) = 4.5F;
  return x;
}

template <typename T>
std::vector<int> integers(const BasicMatrix<T>& m) {
  return {m.elements().begin(), m.elements().end()};
}

// Normal values times 2^exponent, a few of them loud.
Matrix random_rows(int64_t rows, int64_t cols, uint64_t seed, int exponent = 0) {
  Random random(seed);
  Matrix m(rows, cols);
  for (float& x : m.elements()) {
    const double loud = random.below(20) == 0 ? 30 : 1;
    x = static_cast<float>(std::ldexp(loud * random.normal(), exponent));
  }
  return m;
}

template <typename Quantized>
Matrix dequantized(const Quantized& q) {
  Matrix result(q.values.rows(), q.values.cols());
  const int64_t group = q.values.cols() / q.scales.cols();
  for (int64_t r = 0; r < result.rows(); ++r) {
    for (int64_t c = 0; c < result.cols(); ++c) {
      result(r, c) = q.scales(r, c / group) *
                     static_cast<float>(int32_t{q.values(r, c)} - q.zeros(r, c / group));
    }
  }
  return result;
}

bool same_bits(const Matrix& a, const Matrix& b) {
  return std::ranges::equal(
      a.elements(), b.elements(), {}, [](float x) { return std::bit_cast<uint32_t>(x); },
      [](float x) { return std::bit_cast<uint32_t>(x); });
}

TEST(RoundHalfEven, TiesAndSpecialValues) {
  EXPECT_EQ(round_half_even(0.5F), 0.0F);
  EXPECT_EQ(round_half_even(1.5F), 2.0F);
  EXPECT_EQ(round_half_even(2.5F), 2.0F);
  EXPECT_EQ(round_half_even(-2.5F), -2.0F);
  EXPECT_EQ(round_half_even(-3.5F), -4.0F);
  EXPECT_EQ(round_half_even(0.49999997F), 0.0F);
  EXPECT_EQ(round_half_even(8388607.5F), 8388608.0F);
  EXPECT_EQ(round_half_even(1e30F), 1e30F);
  EXPECT_EQ(round_half_even(-kInf), -kInf);
  EXPECT_TRUE(std::isnan(round_half_even(kNan)));
  EXPECT_TRUE(std::signbit(round_half_even(-0.25F)));
}

RC_GTEST_PROP(RoundHalfEven, EqualsTheStandardLibrary, ()) {
  const auto x = std::bit_cast<float>(*rc::gen::arbitrary<uint32_t>());
  RC_PRE(!std::isnan(x));
  RC_ASSERT(round_half_even(x) == std::nearbyint(x));
  const float half = static_cast<float>(*rc::gen::inRange(-1000, 1000)) + 0.5F;
  RC_ASSERT(round_half_even(half) == std::nearbyint(half));
}

TEST(Activations, WorkedByHand) {
  // 7 steps of 1; 2.5 and 3.5 tie to the even neighbour, −0.5 to zero.
  Matrix x(1, 8);
  std::ranges::copy(std::vector<float>{7, 2.5F, 3.5F, -0.5F, 0, -7, 1.4F, -1.6F}, x.data());
  const ActivationQuant q{.bits = 4, .clip = 1.0F};
  const QuantizedRows result = quantize(q, x);
  EXPECT_EQ(result.scales(0, 0), 1.0F);
  EXPECT_EQ(result.zeros(0, 0), 0);
  EXPECT_EQ(integers(result.values), (std::vector<int>{7, 2, 4, 0, 0, -7, 1, -2}));
}

TEST(Activations, SymmetricReference) {
  const QuantizedRows row = quantize(ActivationQuant{.bits = 4}, example());
  EXPECT_EQ(row.scales(0, 0), 0.578571379F);
  EXPECT_EQ(integers(row.values),
            (std::vector<int>{-3, 1,  -2, 2, 0,  7, 1,  -1, 3, 0,  -3, 1, -1, 3, 0,  -2,
                              2,  -1, 3,  1, -2, 2, -1, -3, 1, -2, 2,  0, -3, 1, -1, 3}));
  const QuantizedRows groups = quantize(ActivationQuant{.bits = 4, .group = 8}, example());
  EXPECT_TRUE(
      std::ranges::equal(groups.scales.elements(),
                         std::vector<float>{0.578571379F, 0.22242856F, 0.244671419F, 0.22242856F}));
  EXPECT_EQ(integers(groups.values),
            (std::vector<int>{-3, 1,  -2, 2, 0,  7, 1,  -1, 7, 0,  -7, 4,  -3, 7, 1,  -6,
                              4,  -2, 7,  1, -5, 5, -1, -8, 2, -5, 6,  -1, -8, 3, -4, 7}));
}

TEST(Activations, AsymmetricReference) {
  const QuantizedRows row = quantize(ActivationQuant{.bits = 4, .symmetric = false}, example());
  EXPECT_EQ(row.scales(0, 0), 0.38417998F);
  EXPECT_EQ(row.zeros(0, 0), 4 - 8);
  std::vector<int> expected{0, 5, 1, 8, 4, 15, 6, 2, 8, 4, 0, 6, 2, 9, 4, 0,
                            7, 3, 9, 5, 1, 7,  3, 0, 5, 1, 8, 4, 0, 6, 2, 8};
  for (int& e : expected) e -= 8;
  EXPECT_EQ(integers(row.values), expected);
}

TEST(Cache, Reference) {
  const QuantizedCacheRows four = quantize(CacheQuant{.bits = 4}, example());
  EXPECT_EQ(four.scales(0, 0), 0.40552333F);
  EXPECT_EQ(four.zeros(0, 0), 4);
  EXPECT_EQ(integers(four.values),
            (std::vector<int>{0, 5, 1, 7, 4, 15, 6, 2, 8, 4, 0, 6, 2, 8, 4, 1,
                              7, 3, 9, 5, 1, 7,  3, 0, 5, 1, 7, 4, 0, 6, 2, 8}));
  const QuantizedCacheRows two = quantize(CacheQuant{.bits = 2}, example());
  EXPECT_EQ(two.scales(0, 0), 2.02761674F);
  EXPECT_EQ(two.zeros(0, 0), 1);
  EXPECT_EQ(integers(two.values),
            (std::vector<int>{0, 1, 0, 2, 1, 3, 1, 1, 2, 1, 0, 1, 1, 2, 1, 0,
                              2, 1, 2, 1, 0, 2, 1, 0, 1, 0, 2, 1, 0, 1, 1, 2}));
}

TEST(Cache, DefaultGroupIsTheHeadUpTo128Channels) {
  EXPECT_EQ(group_size(CacheQuant{}, 64), 64);
  EXPECT_EQ(group_size(CacheQuant{}, 128), 128);
  EXPECT_EQ(group_size(CacheQuant{}, 256), 128);
  EXPECT_EQ(group_size(CacheQuant{}, 192), 96);
  EXPECT_EQ(group_size(CacheQuant{.group = 32}, 192), 32);
  EXPECT_EQ(quantize(CacheQuant{.bits = 4}, random_rows(3, 192, 1)).scales.cols(), 2);
}

TEST(Activations, ZerosStayZero) {
  for (const bool symmetric : {true, false}) {
    const ActivationQuant q{.bits = 4, .symmetric = symmetric};
    const QuantizedRows result = quantize(q, Matrix(2, 8, 0.0F));
    for (const float s : result.scales.elements()) EXPECT_EQ(s, 1.0F);
    EXPECT_TRUE(same_bits(dequantized(result), Matrix(2, 8, 0.0F)));
  }
}

TEST(Activations, SixteenBitsChangeNothing) {
  const Matrix x = random_rows(3, 16, 5);
  Matrix y = x;
  simulate(ActivationQuant{}, y);
  simulate(CacheQuant{}, y);
  EXPECT_TRUE(same_bits(x, y));
}

TEST(Activations, NanIsZeroAndInfinityTheEndOfTheGrid) {
  Matrix x(1, 5);
  std::ranges::copy(std::vector<float>{1, kNan, -2, 0.5F, kNan}, x.data());
  Matrix without_nan(x.view());
  without_nan(0, 1) = without_nan(0, 4) = 0;
  Matrix y(1, 3);
  std::ranges::copy(std::vector<float>{kInf, -kInf, 1}, y.data());
  for (const bool symmetric : {true, false}) {
    const ActivationQuant q{.bits = 4, .symmetric = symmetric};
    EXPECT_EQ(integers(quantize(q, x).values), integers(quantize(q, without_nan).values));
    const QuantizedRows ends = quantize(q, y);
    EXPECT_EQ(ends.values(0, 0), 7);
    EXPECT_EQ(ends.values(0, 1), -8);
    EXPECT_EQ(ends.values(0, 2), ends.zeros(0, 0));
  }
}

// Any floats at all: the bit patterns include NaN, infinities and denormals.
Matrix any_rows(int64_t rows, int64_t cols) {
  Matrix m(rows, cols);
  const auto kind = *rc::gen::inRange(0, 3);
  for (float& x : m.elements()) {
    const auto bits = *rc::gen::arbitrary<uint32_t>();
    x = std::bit_cast<float>(bits);
    if (kind == 1) x = std::bit_cast<float>(bits & 0x80ffffffU);  // around the least normal
    if (kind == 2) x = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-30F;
  }
  return m;
}

template <typename Quant, typename Quantized>
void agree(const Quant& q, const Matrix& x, const Quantized& integers_of_x, int lowest) {
  Matrix simulated = x;
  simulate(q, simulated);
  RC_ASSERT(same_bits(simulated, dequantized(integers_of_x)));
  for (const float v : simulated.elements()) RC_ASSERT(std::isfinite(v));
  for (const int v : integers_of_x.values.elements()) {
    RC_ASSERT(v >= lowest && v <= lowest + (1 << q.bits) - 1);
  }
}

RC_GTEST_PROP(Activations, SimulatedEqualsDequantisedBitForBit, (bool symmetric)) {
  const int bits = *rc::gen::inRange(2, 9);
  const ActivationQuant q{
      .bits = bits, .group = *rc::gen::element(0, 1, 5, 20), .symmetric = symmetric};
  const Matrix x = any_rows(2, 40);
  agree(q, x, quantize(q, x), -(1 << (bits - 1)));
}

RC_GTEST_PROP(Cache, SimulatedEqualsDequantisedBitForBit, ()) {
  const CacheQuant q{.bits = *rc::gen::inRange(2, 9), .group = *rc::gen::element(0, 8, 16)};
  const Matrix x = any_rows(3, 48);
  agree(q, x, quantize(q, x), 0);
}

RC_GTEST_PROP(Activations, ErrorIsAtMostHalfAStepInsideTheClip, (uint64_t seed, bool symmetric)) {
  const int exponent = *rc::gen::inRange(-100, 100);
  const ActivationQuant q{.bits = *rc::gen::inRange(2, 9),
                          .clip = *rc::gen::element(0.5F, 0.9F, 1.0F),
                          .symmetric = symmetric};
  const Matrix x = random_rows(1, 64, seed, exponent);
  const QuantizedRows result = quantize(q, x);
  const Matrix y = dequantized(result);
  const double scale = result.scales(0, 0);
  const int half = 1 << (q.bits - 1);
  const double low = scale * (-half - result.zeros(0, 0) - 0.5);
  const double high = scale * (half - 1 - result.zeros(0, 0) + 0.5);
  for (int64_t c = 0; c < x.cols(); ++c) {
    if (x(0, c) < low || x(0, c) > high) {
      RC_ASSERT(result.values(0, c) == (x(0, c) < 0 ? -half : half - 1));
    } else {
      RC_ASSERT(std::fabs(double{x(0, c)} - y(0, c)) <= 0.5 * scale * (1 + 1e-4));
    }
  }
}

RC_GTEST_PROP(Activations, GroupsAreIndependentRows, (uint64_t seed, bool symmetric)) {
  const ActivationQuant q{.bits = *rc::gen::inRange(2, 9), .group = 16, .symmetric = symmetric};
  const Matrix x = random_rows(3, 64, seed);
  const QuantizedRows groups = quantize(q, x);
  ActivationQuant whole = q;
  whole.group = 0;
  const QuantizedRows rows = quantize(whole, ConstMatrixRef(x.data(), 12, 16));
  RC_ASSERT(integers(groups.values) == integers(rows.values));
  RC_ASSERT(integers(groups.zeros) == integers(rows.zeros));
  RC_ASSERT(std::ranges::equal(groups.scales.elements(), rows.scales.elements()));
}

TEST(Activations, StridedViewsAndThreadsChangeNothing) {
  Matrix wide = random_rows(70, 600, 3);
  const Matrix before = wide;
  const Matrix x(ConstMatrixRef(wide.view().cols(7, 512)));
  const ActivationQuant q{.bits = 4, .group = 128};
  const int threads = thread_count();
  set_thread_count(1);
  Matrix expected = x;
  simulate(q, expected);
  set_thread_count(3);
  simulate(q, wide.view().cols(7, 512));
  set_thread_count(threads);
  EXPECT_TRUE(same_bits(Matrix(ConstMatrixRef(wide.view().cols(7, 512))), expected));
  for (int64_t r = 0; r < wide.rows(); ++r) {
    EXPECT_EQ(wide(r, 6), before(r, 6));
    EXPECT_EQ(wide(r, 519), before(r, 519));
  }
}

TEST(Check, SaysWhatIsWrong) {
  EXPECT_TRUE(check(ActivationQuant{}, 64).ok());
  EXPECT_TRUE(check(ActivationQuant{.bits = 4, .group = 32}, 64).ok());
  for (const int bits : {-1, 0, 1, 9, 15, 17, 1 << 30}) {
    const Status status = check(ActivationQuant{.bits = bits}, 64);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message().find(std::to_string(bits)), std::string::npos);
    EXPECT_FALSE(check(WeightQuant{.bits = bits}, 64).ok());
    EXPECT_FALSE(check(CacheQuant{.bits = bits}, 64).ok());
  }
  for (const int64_t group : {int64_t{-1}, int64_t{7}, int64_t{128}, INT64_MIN, INT64_MAX}) {
    EXPECT_FALSE(check(ActivationQuant{.bits = 4, .group = group}, 64).ok());
    EXPECT_FALSE(check(WeightQuant{.bits = 4, .group = group}, 64).ok());
    EXPECT_FALSE(check(CacheQuant{.bits = 4, .group = group}, 64).ok());
  }
  for (const float clip : {0.0F, -1.0F, 1.01F, kNan, kInf}) {
    EXPECT_FALSE(check(ActivationQuant{.bits = 4, .clip = clip}, 64).ok());
    EXPECT_FALSE(check(WeightQuant{.bits = 4, .search_clip = false, .clip = clip}, 64).ok());
    EXPECT_FALSE(check(CacheQuant{.bits = 4, .clip = clip}, 64).ok());
  }
  EXPECT_FALSE(check(ActivationQuant{.bits = 4}, 0).ok());
  EXPECT_FALSE(check(CacheQuant{.bits = 4}, -64).ok());
}

}  // namespace
}  // namespace quarot
