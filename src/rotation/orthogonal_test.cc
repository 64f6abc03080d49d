#include "rotation/orthogonal.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"

namespace quarot {
namespace {

template <typename T>
BasicMatrix<T> gaussian(int64_t rows, int64_t cols, uint64_t seed = 1) {
  Random random(seed);
  BasicMatrix<T> m(rows, cols);
  for (T& x : m.elements()) x = static_cast<T>(random.normal());
  return m;
}

template <typename T>
bool same_bytes(const BasicMatrix<T>& a, const BasicMatrix<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <typename A, typename B>
double largest_difference(const BasicMatrix<A>& a, const BasicMatrix<B>& b) {
  double largest = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(double{a.data()[i]} - double{b.data()[i]}));
  }
  return largest;
}

// x·Bᵀ, by the definition.
BasicMatrix<double> product(const BasicMatrix<double>& x, const BasicMatrix<double>& b) {
  BasicMatrix<double> y(x.rows(), b.rows(), 0);
  for (int64_t r = 0; r < x.rows(); ++r) {
    for (int64_t i = 0; i < b.rows(); ++i) {
      for (int64_t j = 0; j < b.cols(); ++j) y(r, i) += x(r, j) * b(i, j);
    }
  }
  return y;
}

BasicMatrix<double> transpose(const BasicMatrix<double>& a) {
  BasicMatrix<double> t(a.cols(), a.rows());
  for (int64_t i = 0; i < a.rows(); ++i) {
    for (int64_t j = 0; j < a.cols(); ++j) t(j, i) = a(i, j);
  }
  return t;
}

BasicMatrix<double> kronecker(const BasicMatrix<double>& a, const BasicMatrix<double>& b) {
  BasicMatrix<double> k(a.rows() * b.rows(), a.cols() * b.cols());
  for (int64_t i = 0; i < k.rows(); ++i) {
    for (int64_t j = 0; j < k.cols(); ++j) {
      k(i, j) = a(i / b.rows(), j / b.cols()) * b(i % b.rows(), j % b.cols());
    }
  }
  return k;
}

BasicMatrix<double> unit(int64_t n) { return Orthogonal::identity(n).matrix(); }

struct Named {
  const char* description;
  Orthogonal op;
};

std::vector<Named> one_of_each() {
  return {
      {"identity", Orthogonal::identity(24)},
      {"Paley I(28)", Orthogonal::hadamard(28)},
      {"2^1 x Paley I(12) with random signs", Orthogonal::randomised_hadamard(24, 3)},
      {"random orthogonal(19)", Orthogonal::random(19, 4)},
      {"dense orthogonal(28)", *Orthogonal::dense(Orthogonal::hadamard(28).matrix())},
      {"Paley II(36) across 36 groups of 4", Orthogonal::across(36, 4)},
      {"2^3 with random signs on each of 3 blocks",
       Orthogonal::blocks(3, Orthogonal::randomised_hadamard(8, 5))},
      {"random orthogonal(5) on each of 4 blocks", Orthogonal::blocks(4, Orthogonal::random(5, 6))},
      {"2^4 on each of 7 blocks, then Paley I(28) across 28 groups of 4",
       Orthogonal::compose({Orthogonal::blocks(7, Orthogonal::hadamard(16)),
                            Orthogonal::identity(112), cross_head_hadamard(7, 16)})},
  };
}

TEST(Orthogonal, SaysWhatItIs) {
  for (const auto& [description, op] : one_of_each()) EXPECT_EQ(op.description(), description);
}

TEST(Orthogonal, AppliesItsMatrixAndTheTranspose) {
  for (const auto& [description, op] : one_of_each()) {
    const BasicMatrix<double> b = op.matrix();
    EXPECT_LT(largest_difference(product(b, b), unit(op.size())), 1e-13) << description;
    const auto x = gaussian<double>(21, op.size());
    BasicMatrix<double> y(x.view());
    op.apply(y);
    EXPECT_LT(largest_difference(y, product(x, b)), 1e-13) << description;
    BasicMatrix<double> z(x.view());
    op.apply_transposed(z);
    EXPECT_LT(largest_difference(z, product(x, transpose(b))), 1e-13) << description;
  }
}

TEST(Orthogonal, StructureIsKronecker) {
  const auto h36 = Orthogonal::hadamard(36).matrix();
  EXPECT_EQ(largest_difference(Orthogonal::across(36, 4).matrix(), kronecker(h36, unit(4))), 0);
  const Orthogonal b = Orthogonal::randomised_hadamard(24, 1);
  EXPECT_EQ(largest_difference(Orthogonal::blocks(3, b).matrix(), kronecker(unit(3), b.matrix())),
            0);
  const Orthogonal dense = Orthogonal::random(6, 1);
  EXPECT_EQ(
      largest_difference(Orthogonal::blocks(3, dense).matrix(), kronecker(unit(3), dense.matrix())),
      0);
  const Orthogonal twice = Orthogonal::compose({b, Orthogonal::random(24, 2)});
  EXPECT_LT(largest_difference(twice.matrix(),
                               product(Orthogonal::random(24, 2).matrix(), transpose(b.matrix()))),
            1e-14);
}

TEST(Orthogonal, SignsComeBeforeTheHadamard) {
  const Orthogonal b = Orthogonal::randomised_hadamard(12, 9);
  BasicMatrix<double> expected = Orthogonal::hadamard(12).matrix();
  const auto signs = b.fast()->signs;
  ASSERT_EQ(signs.size(), 12U);
  for (int64_t i = 0; i < 12; ++i) {
    for (int64_t j = 0; j < 12; ++j) expected(i, j) *= double{signs[j]};
  }
  EXPECT_EQ(largest_difference(b.matrix(), expected), 0);
}

// Most H_m are not symmetric, so a forgotten transpose must show.
TEST(Orthogonal, PaleyOneIsNotSymmetric) {
  const auto h = Orthogonal::hadamard(28).matrix();
  EXPECT_GT(largest_difference(h, transpose(h)), 0.3);
}

TEST(Orthogonal, ModelWidths) {
  for (const int64_t n : {96,    112,   152,   172,   192,   224,   256,   576,   768,   896,
                          960,   1024,  1536,  2048,  2304,  2560,  3072,  3584,  4096,  4864,
                          5120,  5632,  6912,  8192,  8960,  9728,  11008, 12288, 13696, 13824,
                          14336, 17408, 18432, 18944, 25600, 27648, 28672, 29568, 49152}) {
    const Orthogonal b = Orthogonal::randomised_hadamard(n, 11);
    const auto x = gaussian<float>(3, n);
    BasicMatrix<float> y(x.view());
    b.apply(y);
    BasicMatrix<double> exact(3, n);
    for (int64_t i = 0; i < x.size(); ++i) exact.data()[i] = double{x.data()[i]};
    b.apply(exact);
    double error = 0;
    double before = 0;
    double after = 0;
    for (int64_t i = 0; i < x.size(); ++i) {
      error += std::pow(double{y.data()[i]} - exact.data()[i], 2);
      before += std::pow(double{x.data()[i]}, 2);
      after += std::pow(exact.data()[i], 2);
    }
    EXPECT_LT(std::sqrt(error / before), 4e-7) << n;
    EXPECT_NEAR(after / before, 1, 1e-12) << n;
    b.apply_transposed(y);
    EXPECT_LT(largest_difference(x, y), 5e-6) << n;
  }
}

// Column j of a Hadamard matrix: every entry ±1/√n.
TEST(Orthogonal, ColumnsOfWideHadamards) {
  for (const int64_t n : {4864, 11008, 14336, 28672, 29568, 49152}) {
    Matrix e(2, n, 0.0F);
    e(0, n / 3) = 1;
    e(1, n - 1) = 1;
    Orthogonal::hadamard(n).apply(e);
    for (const float v : e.elements()) {
      ASSERT_NEAR(std::abs(v), 1 / std::sqrt(static_cast<float>(n)), 1e-8) << n;
    }
    double dot = 0;
    for (int64_t i = 0; i < n; ++i) dot += double{e(0, i)} * e(1, i);
    ASSERT_NEAR(dot, 0, 1e-9);
  }
}

RC_GTEST_PROP(Orthogonal, EveryWidthWorks, ()) {
  const auto n = *rc::gen::inRange<int64_t>(1, 3001);
  const Orthogonal b = Orthogonal::randomised_hadamard(n, *rc::gen::arbitrary<uint64_t>());
  RC_ASSERT(b.size() == n);
  const auto x = gaussian<float>(2, n);
  Matrix y(x.view());
  b.apply(y);
  b.apply_transposed(y);
  // A dense factor makes sums of up to n terms, whose round-off grows with its root.
  RC_ASSERT(largest_difference(x, y) < std::max(1e-5, 5e-7 * std::sqrt(static_cast<double>(n))));
}

TEST(Orthogonal, ARowDoesNotDependOnItsNeighboursOrTheThreads) {
  const int threads = thread_count();
  for (const auto& [description, op] : one_of_each()) {
    const auto x = gaussian<float>(1500, op.size());
    set_thread_count(1);
    Matrix together(x.view());
    op.apply(together);
    set_thread_count(3);
    Matrix threaded(x.view());
    op.apply(threaded);
    EXPECT_TRUE(same_bytes(together, threaded)) << description;
    for (int64_t r = 0; r < 40; ++r) {
      Matrix alone(x.view().rows(r, 1));
      op.apply(alone);
      EXPECT_TRUE(same_bytes(alone, Matrix(together.view().rows(r, 1)))) << description;
    }
  }
  set_thread_count(threads);
}

TEST(Orthogonal, LeavesGapsBetweenRowsAlone) {
  for (const auto& [description, op] : one_of_each()) {
    const int64_t n = op.size();
    auto wide = gaussian<float>(20, n + 3);
    const Matrix before(wide.view());
    Matrix expected(before.view().cols(0, n));
    op.apply(expected);
    op.apply(wide.view().cols(0, n));
    EXPECT_TRUE(same_bytes(Matrix(wide.view().cols(0, n)), expected)) << description;
    EXPECT_TRUE(same_bytes(Matrix(wide.view().cols(n, 3)), Matrix(before.view().cols(n, 3))));
  }
}

TEST(Orthogonal, NoRowsIsNoWork) {
  Matrix none(0, 28);
  Orthogonal::hadamard(28).apply(none);
  Orthogonal::random(28, 1).apply(none);
}

TEST(Orthogonal, FastTellsKernelsTheStructure) {
  const Orthogonal b = Orthogonal::blocks(4, Orthogonal::across(28, 16));
  const auto fast = b.fast();
  ASSERT_TRUE(fast.has_value());
  EXPECT_EQ(fast->plan->m, 28);
  EXPECT_EQ(fast->blocks, 4);
  EXPECT_EQ(fast->inner, 16);
  EXPECT_TRUE(fast->signs.empty());
  EXPECT_FALSE(Orthogonal::random(4, 1).fast().has_value());
  EXPECT_FALSE(Orthogonal::identity(4).fast().has_value());
}

// xoshiro256** is specified bit for bit, and so are the signs: computed from its definition in
// Python.
TEST(Orthogonal, SeedsGiveTheSameSignsForEver) {
  const auto text = [](uint64_t seed, int64_t n) {
    const Orthogonal b = Orthogonal::randomised_hadamard(n, seed);
    std::string signs;
    const auto fast = b.fast();
    for (const float s : fast->signs) signs += s > 0 ? '+' : '-';
    return signs;
  };
  EXPECT_EQ(text(0, 32), "--++--+---+++-++-+-++++--+----++");
  EXPECT_EQ(text(42, 32), "++---------+-+------+++-+++--++-");
  EXPECT_EQ(text(42, 4096).substr(4064), "+-+++-++--+-+---+-+++++--++++---");
  EXPECT_NE(text(1, 64), text(2, 64));
}

TEST(Orthogonal, DenseRefusesWhatIsNotOrthonormal) {
  const auto refused = [](const BasicMatrix<double>& m) {
    const auto result = Orthogonal::dense(m);
    return !result.ok() && result.error().code() == ErrorCode::kInvalidArgument;
  };
  BasicMatrix<double> b = Orthogonal::random(40, 1).matrix();
  EXPECT_TRUE(Orthogonal::dense(b).ok());
  b(7, 9) += 1e-8;
  EXPECT_TRUE(refused(b));
  b(7, 9) = std::nan("");
  EXPECT_TRUE(refused(b));
  EXPECT_TRUE(refused(BasicMatrix<double>(2, 3, 0)));
  EXPECT_TRUE(refused(BasicMatrix<double>(2, 2, 0)));
}

double determinant(BasicMatrix<double> a) {
  double result = 1;
  for (int64_t k = 0; k < a.rows(); ++k) {
    int64_t pivot = k;
    for (int64_t i = k; i < a.rows(); ++i) {
      if (std::abs(a(i, k)) > std::abs(a(pivot, k))) pivot = i;
    }
    if (pivot != k) {
      std::ranges::swap_ranges(a.row(k), a.row(pivot));
      result = -result;
    }
    result *= a(k, k);
    for (int64_t i = k + 1; i < a.rows(); ++i) {
      const double f = a(i, k) / a(k, k);
      for (int64_t j = k; j < a.rows(); ++j) a(i, j) -= f * a(k, j);
    }
  }
  return result;
}

TEST(Haar, IsOrthonormal) {
  for (const int64_t n : {1, 2, 31, 32, 33, 200}) {
    const auto q = Orthogonal::random(n, 17).matrix();
    EXPECT_LT(largest_difference(product(q, q), unit(n)), 1e-13) << n;
  }
}

TEST(Haar, SeedsAndThreads) {
  const int threads = thread_count();
  const auto q = Orthogonal::random(100, 1).matrix();
  set_thread_count(3);
  EXPECT_TRUE(same_bytes(q, Orthogonal::random(100, 1).matrix()));
  set_thread_count(threads);
  EXPECT_FALSE(same_bytes(q, Orthogonal::random(100, 2).matrix()));
}

// Under the Haar measure of O(n): E q = 0, E q² = 1/n, E q⁴ = 3/(n(n + 2)), E tr² = 1, and each
// sign of the determinant has probability one half.
TEST(Haar, HasTheMomentsOfTheUniformDistribution) {
  constexpr int64_t kN = 5;
  constexpr int kSamples = 20000;
  BasicMatrix<double> mean(kN, kN, 0);
  BasicMatrix<double> square(kN, kN, 0);
  BasicMatrix<double> fourth(kN, kN, 0);
  double trace_square = 0;
  int positive = 0;
  for (int s = 0; s < kSamples; ++s) {
    const auto q = Orthogonal::random(kN, static_cast<uint64_t>(s)).matrix();
    double trace = 0;
    for (int64_t i = 0; i < kN; ++i) trace += q(i, i);
    trace_square += trace * trace / kSamples;
    for (int64_t i = 0; i < q.size(); ++i) {
      const double x = q.data()[i];
      mean.data()[i] += x / kSamples;
      square.data()[i] += x * x / kSamples;
      fourth.data()[i] += x * x * x * x / kSamples;
    }
    positive += determinant(q) > 0 ? 1 : 0;
  }
  for (int64_t i = 0; i < mean.size(); ++i) {
    EXPECT_NEAR(mean.data()[i], 0, 0.016) << i;
    EXPECT_NEAR(square.data()[i], 0.2, 0.008) << i;
    EXPECT_NEAR(fourth.data()[i], 3.0 / 35, 0.006) << i;
  }
  EXPECT_NEAR(trace_square, 1, 0.05);
  EXPECT_NEAR(positive, kSamples / 2.0, 300);
}

TEST(CrossHead, SplitsHeadsUntilAHadamardExists) {
  struct Expected {
    int64_t heads, head_dim;
    const char* description;
  };
  for (const Expected& e : std::initializer_list<Expected>{
           {1, 64, "identity"},
           {2, 64, "2^1 across 2 groups of 64"},
           {3, 64, "Paley I(12) across 12 groups of 16"},
           {4, 64, "2^2 across 4 groups of 64"},
           {6, 64, "Paley I(12) across 12 groups of 32"},
           {7, 128, "Paley I(28) across 28 groups of 32"},
           {9, 64, "Paley II(36) across 36 groups of 16"},
           {12, 64, "Paley I(12) across 12 groups of 64"},
           {14, 64, "Paley I(28) across 28 groups of 32"},
           {24, 128, "2^1 x Paley I(12) across 24 groups of 128"},
           {32, 128, "2^5 across 32 groups of 128"},
           {40, 128, "2^1 x Paley I(20) across 40 groups of 128"},
           {47, 128, "Paley I(752) across 752 groups of 8"},
           {7, 2, "DCT(7) across 7 groups of 2"},
           {9, 5, "DCT(9) across 9 groups of 5"},
       }) {
    const Orthogonal b = cross_head_hadamard(e.heads, e.head_dim);
    EXPECT_EQ(b.description(), e.description);
    EXPECT_EQ(b.size(), e.heads * e.head_dim);
  }
}

// A Hadamard in every head, then across k = 4 sub-heads or fewer: no output holds more than √k
// times its even share.
TEST(CrossHead, SpreadsOneChannelOverAll) {
  for (const auto& [heads, head_dim] : {std::pair{9, 64}, {14, 64}, {32, 64}, {7, 128}}) {
    const int64_t n = int64_t{heads} * head_dim;
    Matrix e(1, n, 0.0F);
    e(0, n / 2 + 3) = 1;
    Orthogonal::compose({Orthogonal::blocks(heads, Orthogonal::hadamard(head_dim)),
                         cross_head_hadamard(heads, head_dim)})
        .apply(e);
    const double expected = 1 / std::sqrt(static_cast<double>(n));
    double largest = 0;
    for (const float v : e.elements()) largest = std::max(largest, double{std::abs(v)});
    EXPECT_GE(largest, expected * 0.999);
    EXPECT_LE(largest, expected * 2.001) << heads;
  }
}

}  // namespace
}  // namespace quarot
