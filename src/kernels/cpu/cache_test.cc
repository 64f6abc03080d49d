#include "kernels/cpu/cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "kernels/cpu/kernels_test.h"
#include "kernels/reference/cache.h"
#include "support/sanitizer.h"

namespace quarot::cpu {
namespace {

Matrix random_matrix(int64_t rows, int64_t cols, Random& random) {
  Matrix m(rows, cols);
  for (float& x : m.elements()) x = static_cast<float>(random.normal());
  return m;
}

// Pages of one layer: a sequence's pages lie in the order `order` of its memory.
class Sequence {
 public:
  Sequence(const CacheLayout& layout, int64_t kv_heads, int64_t tokens, bool reversed = false)
      : bytes_(layout.page_bytes() * kv_heads + kOffset),
        memory_(static_cast<size_t>((tokens + kPageTokens - 1) / kPageTokens * bytes_)) {
    std::ranges::fill(memory_, std::byte{0});
    const int64_t count = static_cast<int64_t>(memory_.size()) / bytes_;
    for (int64_t i = 0; i < count; ++i) {
      pages_.push_back(memory_.data() + (reversed ? count - 1 - i : i) * bytes_);
    }
  }
  CacheToken at(int64_t position) { return {pages_.data(), position}; }
  const AlignedVector<std::byte>& memory() const { return memory_; }
  static constexpr int64_t kOffset = 64;  // as if other layers came first

 private:
  int64_t bytes_;
  AlignedVector<std::byte> memory_;
  std::vector<std::byte*> pages_;
};

struct Case {
  CacheLayout layout;
  int64_t heads, kv_heads, tokens, window;
};

const Case kCases[] = {{{64, 4, 4, 1}, 9, 3, 70, 0},    {{64, 4, 4, 1}, 2, 2, 33, 10},
                       {{128, 8, 8, 1}, 4, 1, 50, 0},   {{80, 4, 2, 1}, 5, 1, 40, 0},
                       {{96, 3, 3, 1}, 6, 2, 45, 7},    {{16, 2, 8, 1}, 12, 1, 20, 0},
                       {{256, 4, 4, 2}, 2, 1, 37, 0},   {{32, 32, 32, 1}, 3, 1, 65, 0},
                       {{48, 8, 3, 1}, 7, 1, 530, 500}, {{64, 4, 4, 1}, 3, 1, 600, 0}};

HeadsTask heads_task(const Case& c, const Matrix& x, int64_t heads) {
  return {.tokens = x.rows(),
          .heads = heads,
          .head_dim = c.layout.head_dim,
          .x = x.data(),
          .x_stride = x.cols()};
}

template <typename Heads>
void append(const Case& c, const Matrix& x, bool values, Sequence& to, const Heads& heads) {
  std::vector<CacheToken> at;
  for (int64_t i = 0; i < x.rows(); ++i) at.push_back(to.at(i));
  HeadsTask t = heads_task(c, x, c.kv_heads);
  t.cache = at.data();
  t.layout = &c.layout;
  t.page_offset = Sequence::kOffset;
  t.values = values;
  t.clip = 0.95F;
  heads(t);
}

// Queries of positions first…last−1.
template <typename Attention>
void attend(const Case& c, const Matrix& q, Sequence& in, int64_t first, int64_t last, Matrix& y,
            const Attention& attention) {
  std::vector<CacheToken> at;
  for (int64_t i = first; i < last; ++i) at.push_back(in.at(i));
  attention({.tokens = last - first,
             .heads = c.heads,
             .kv_heads = c.kv_heads,
             .q = q.row(first).data(),
             .q_stride = q.cols(),
             .cache = at.data(),
             .layout = &c.layout,
             .page_offset = Sequence::kOffset,
             .window = c.window,
             .y = y.row(first).data(),
             .y_stride = y.cols()});
}

class CacheTest : public KernelsTest {
 protected:
  auto heads_kernel() const {
    return [this](const HeadsTask& t) { heads(kernels(), t); };
  }
  auto attention_kernel() const {
    return [this](const AttentionTask& t) { attention(kernels(), t); };
  }
};

TEST_P(CacheTest, EqualsTheReference) {
  Random random(1);
  for (const Case& c : kCases) {
    const int64_t d = c.layout.head_dim;
    EXPECT_TRUE(check(c.layout).ok());
    const Matrix k = random_matrix(c.tokens, c.kv_heads * d, random);
    const Matrix v = random_matrix(c.tokens, c.kv_heads * d, random);
    const Matrix q = random_matrix(c.tokens, c.heads * d, random);
    Sequence expected_cache(c.layout, c.kv_heads, c.tokens);
    Sequence cache(c.layout, c.kv_heads, c.tokens);
    append(c, k, false, expected_cache, reference::heads);
    append(c, v, true, expected_cache, reference::heads);
    append(c, k, false, cache, heads_kernel());
    append(c, v, true, cache, heads_kernel());
    EXPECT_TRUE(expected_cache.memory() == cache.memory()) << d;
    const int64_t first = std::max<int64_t>(c.tokens - 40, 0);
    Matrix expected(c.tokens, c.heads * d, 0.0F);
    Matrix y(c.tokens, c.heads * d, 0.0F);
    attend(c, q, cache, first, c.tokens, expected, reference::attention);
    attend(c, q, cache, first, c.tokens, y, attention_kernel());
    EXPECT_TRUE(same_bits(expected, y)) << d << " at " << c.layout.k_bits << " bits";
  }
}

TEST_P(CacheTest, BatchPagesAndThreadsChangeNothing) {
  Random random(2);
  const Case c = {{64, 4, 4, 1}, 9, 3, 1200, 0};
  const Matrix k = random_matrix(c.tokens, 192, random);
  const Matrix q = random_matrix(c.tokens, 576, random);
  Sequence cache(c.layout, c.kv_heads, c.tokens);
  Sequence reversed(c.layout, c.kv_heads, c.tokens, true);
  for (Sequence* s : {&cache, &reversed}) {
    append(c, k, false, *s, heads_kernel());
    append(c, k, true, *s, heads_kernel());
  }
  const int64_t first = c.tokens - 30;
  Matrix together(c.tokens, 576, 0.0F);
  Matrix alone(c.tokens, 576, 0.0F);
  const int threads = thread_count();
  attend(c, q, cache, first, c.tokens, together, attention_kernel());
  set_thread_count(threads + 1);
  for (int64_t i = first; i < c.tokens; ++i) {
    attend(c, q, reversed, i, i + 1, alone, attention_kernel());
  }
  set_thread_count(threads);
  EXPECT_TRUE(same_bits(together, alone));
}

// Values of neighbouring tokens share words: were two threads to write one, now and then a token
// would be lost.
TEST(Cache, ThreadsDoNotWriteTheSameWords) {
  const auto write = [](const HeadsTask& t) { heads(**find_kernels(""), t); };
  Random random(4);
  const Case c = {{64, 4, 4, 1}, 1, 1, 1024, 0};
  const Matrix v = random_matrix(c.tokens, 64, random);
  const int threads = thread_count();
  set_thread_count(1);
  Sequence expected(c.layout, 1, c.tokens);
  append(c, v, true, expected, write);
  int differing = 0;
  for (int i = 0; i < (testing::under_sanitizer() ? 30 : 800); ++i) {
    set_thread_count(2 + i % 14);
    Sequence cache(c.layout, 1, c.tokens);
    append(c, v, true, cache, write);
    differing += cache.memory() == expected.memory() ? 0 : 1;
  }
  set_thread_count(threads);
  EXPECT_EQ(differing, 0);
}

TEST_P(CacheTest, HeadVectorsEqualTheReference) {
  Random random(3);
  for (const int64_t d : {16, 64, 80, 128}) {
    const Case c = {{d, 4, 4, 1}, 3, 3, 5, 0};
    const Matrix x = random_matrix(5, 3 * d, random);
    const Matrix angles = random_matrix(5, d / 2, random);
    const Matrix factor = random_matrix(d / 16, d / 16, random);
    const Matrix centre = random_matrix(3, d, random);
    const Matrix gain = random_matrix(1, d, random);
    const HadamardTask h = {.m = d / 16, .log2 = 4, .factor = factor.data(), .scale = 0.25F};
    HeadsTask t = heads_task(c, x, 3);
    t.gain = gain.data();
    t.eps = 1e-6F;
    t.cos = angles.data();
    t.sin = angles.data();
    t.rotary = d == 80 ? 40 : d;
    t.hadamard = &h;
    t.centre = centre.data();
    t.scale = 0.125F;
    Matrix expected(5, 3 * d);
    Matrix y(5, 3 * d);
    t.y_stride = 3 * d;
    t.y = expected.data();
    reference::heads(t);
    t.y = y.data();
    heads(kernels(), t);
    EXPECT_TRUE(same_bits(expected, y)) << d;
  }
}

// Attention reads all of a padded head: what was in memory before must be gone.
TEST_P(CacheTest, ShortHeadVectorsEndInZeros) {
  Random random(5);
  const Case c = {{16, 4, 4, 1}, 2, 2, 3, 0};
  const Matrix x = random_matrix(3, 2 * 10, random);
  HeadsTask t = heads_task(c, x, 2);
  t.head_dim = 10;
  t.x_stride = 20;
  t.y_head = 16;
  t.y_stride = 32;
  for (const bool of_reference : {true, false}) {
    Matrix y(3, 32, std::numeric_limits<float>::quiet_NaN());
    t.y = y.data();
    if (of_reference) {
      reference::heads(t);
    } else {
      heads(kernels(), t);
    }
    for (int64_t i = 0; i < y.size(); ++i) {
      const int64_t d = i % 16;
      EXPECT_EQ(y.data()[i], d < 10 ? x(i / 32, i % 32 / 16 * 10 + d) : 0.0F);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, CacheTest, every_isa(), isa_name);

// The reference itself: attention in float64 over the values that the page stands for.
TEST(CacheReference, IsAttentionOverWhatThePageHolds) {
  Random random(4);
  for (const Case& c : kCases) {
    const int64_t d = c.layout.head_dim;
    const int64_t group = d / c.layout.groups;
    const Matrix x = random_matrix(c.tokens, c.kv_heads * d, random);
    const Matrix q = random_matrix(c.tokens, c.heads * d, random);
    Sequence cache(c.layout, c.kv_heads, c.tokens);
    append(c, x, false, cache, reference::heads);
    append(c, x, true, cache, reference::heads);
    Matrix y(c.tokens, c.heads * d, 0.0F);
    const int64_t last = c.tokens - 1;
    attend(c, q, cache, last, c.tokens, y, reference::attention);

    // Element i of a token's head 0, as the documented layout has it.
    const auto element = [&](int64_t token, int64_t i, bool values) {
      const CacheLayout& l = c.layout;
      const std::byte* page = cache.at(token).pages[token / kPageTokens] + Sequence::kOffset;
      const int64_t slot = token % kPageTokens;
      const int bits = values ? l.v_bits : l.k_bits;
      const auto* words = reinterpret_cast<const uint32_t*>(page + (values ? l.v_words() : 0));
      const uint32_t field = values ? reference::get_field(words + i, d, slot, bits)
                                    : reference::get_field(words + slot, kPageTokens, i, bits);
      const int64_t at = i / group * kPageTokens + slot;
      const auto* scales =
          reinterpret_cast<const float*>(page + (values ? l.v_scales() : l.k_scales()));
      const auto* zeros =
          reinterpret_cast<const uint8_t*>(page + (values ? l.v_zeros() : l.k_zeros()));
      const double number =
          bits == 32 ? std::bit_cast<float>(field) : static_cast<double>(field) - zeros[at];
      // Within half a step, or clipped by 5 % of the range.
      const double value = scales[at] * number;
      EXPECT_NEAR(value, x(token, i), bits == 32 ? 0.0 : 0.5 * scales[at] + 0.25);
      return value;
    };
    std::vector<double> out(static_cast<size_t>(d), 0.0);
    double total = 0;
    for (int64_t t = c.window == 0 ? 0 : c.tokens - c.window; t <= last; ++t) {
      double score = 0;
      for (int64_t i = 0; i < d; ++i) score += q(last, i) * element(t, i, false);
      const double p = std::exp(score);
      total += p;
      for (int64_t i = 0; i < d; ++i) out[i] += p * element(t, i, true);
    }
    for (int64_t i = 0; i < d; ++i) EXPECT_NEAR(y(last, i), out[i] / total, 1e-4);
  }
}

// q = clip(rint(x/s) + z, 0, 15) with s = 0.95·(max − min)/15, z = rint(−0.95·min/s), worked out by
// hand.
TEST(CacheReference, QuantisesAsDesigned) {
  Matrix x(1, 16, 0.0F);
  const float values[] = {-1.0F, 2.0F, 0.5F, -0.3F, 1.7F};
  std::ranges::copy(values, x.row(0).begin());
  const Case c = {{16, 4, 4, 1}, 1, 1, 1, 0};
  Sequence cache(c.layout, 1, 1);
  append(c, x, false, cache, reference::heads);
  const std::byte* page = cache.at(0).pages[0] + Sequence::kOffset;
  const auto* words = reinterpret_cast<const uint32_t*>(page);
  const int expected[] = {0, 15, 8, 3, 14, 5};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(reference::get_field(words, kPageTokens, i, 4), uint32_t(expected[i])) << i;
  }
  EXPECT_FLOAT_EQ(*reinterpret_cast<const float*>(page + c.layout.k_scales()), 0.95F * 3 / 15);
}

TEST(CacheLayout, TakesWhatItsBitsTake) {
  for (const int bits : {2, 3, 4, 8}) {
    const CacheLayout l = {.head_dim = 64, .k_bits = bits, .v_bits = bits};
    const int64_t elements = 2 * 64 * kPageTokens;
    const int64_t scales = 2 * kPageTokens * 5;
    EXPECT_LE(l.page_bytes(), (elements * bits / 8 + scales) * 105 / 100);
  }
  EXPECT_FALSE(check({.head_dim = 64, .k_bits = 5}).ok());
  EXPECT_FALSE(check({.head_dim = 72}).ok());
  EXPECT_FALSE(check({.head_dim = 80, .k_bits = 3}).ok());
  EXPECT_FALSE(check({.head_dim = 64, .groups = 4}).ok());
}

}  // namespace
}  // namespace quarot::cpu
