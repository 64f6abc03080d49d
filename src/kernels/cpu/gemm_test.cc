#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>

#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "kernels/cpu/kernels_test.h"
#include "kernels/reference/gemm.h"

namespace quarot::cpu {
namespace {

struct Shape {
  int64_t rows, outputs, inputs;
  int64_t group = 0;
  bool grouped_activations = false;
  bool bias = false;
  bool accumulate = false;
};

// One product with values from `value(lowest, highest)`, computed by the reference and by kernels.
class Problem {
 public:
  template <typename Value>
  Problem(const Shape& s, int w_bits, int a_bits, Random& random, Value value)
      : shape_(s), a_bits_(a_bits), w_values_(s.outputs, s.inputs), a_values_(s.rows, s.inputs) {
    const int64_t groups = s.group == 0 ? 1 : s.inputs / s.group;
    for (int8_t& w : w_values_.elements()) w = value(-(1 << (w_bits - 1)), (1 << (w_bits - 1)) - 1);
    for (int8_t& a : a_values_.elements()) a = value(-(1 << (a_bits - 1)), (1 << (a_bits - 1)) - 1);
    const auto fill = [&](Matrix& m, int64_t r, int64_t c) {
      m.resize(r, c);
      for (float& x : m.elements()) x = static_cast<float>(random.normal());
    };
    fill(w_scales_, s.outputs, groups);
    fill(a_scales_, s.rows, s.grouped_activations ? groups : 1);
    fill(bias_, 1, s.outputs);
    fill(y_, s.rows, s.outputs);

    padded_.resize(s.rows, activation_stride(s.inputs));
    std::ranges::fill(padded_.elements(), int8_t{0});
    sums_.resize(s.rows, groups);
    for (int64_t t = 0; t < s.rows; ++t) {
      std::ranges::copy(a_values_.row(t), padded_.row(t).begin());
      std::ranges::fill(sums_.row(t), 0);
      for (int64_t k = 0; k < s.inputs; ++k) {
        sums_(t, k / (s.inputs / groups)) += a_values_(t, k);
      }
    }
    auto packed =
        pack_weight(w_bits, w_values_.view(), w_scales_,
                    s.bias ? std::span<const float>(bias_.elements()) : std::span<const float>());
    EXPECT_TRUE(packed.ok());
    packed_ = *std::move(packed);
  }

  Matrix expected() const {
    Matrix y = y_;
    reference::gemm({.rows = shape_.rows,
                     .outputs = shape_.outputs,
                     .inputs = shape_.inputs,
                     .group = shape_.group,
                     .a = a_values_.data(),
                     .w = w_values_.data(),
                     .a_scales = a_scales_.data(),
                     .a_scale_groups = a_scales_.cols(),
                     .w_scales = w_scales_.data(),
                     .bias = shape_.bias ? bias_.data() : nullptr,
                     .accumulate = shape_.accumulate,
                     .y = y.data()});
    return y;
  }

  Matrix result(const Kernels& kernels) const {
    Matrix y = y_;
    const Activations a = {.rows = shape_.rows,
                           .bits = a_bits_,
                           .values = padded_.data(),
                           .stride = padded_.cols(),
                           .scales = a_scales_.data(),
                           .scale_groups = a_scales_.cols(),
                           .sums = sums_.data()};
    gemm(kernels, a, packed_, y, shape_.accumulate);
    return y;
  }

 private:
  Shape shape_;
  int a_bits_;
  BasicMatrix<int8_t> w_values_, a_values_, padded_;
  Matrix w_scales_, a_scales_, bias_, y_;
  BasicMatrix<int32_t> sums_;
  PackedWeight packed_;
};

using GemmTest = KernelsTest;

TEST_P(GemmTest, EqualsTheReferenceForEveryShape) {
  Random random(1);
  const auto any = [&](int lowest, int highest) {
    return static_cast<int8_t>(lowest +
                               static_cast<int>(random.below(static_cast<uint64_t>(highest) -
                                                             static_cast<uint64_t>(lowest) + 1)));
  };
  std::vector<Shape> shapes = {
      {1, 1, 1},         {1, 32, 64},      {2, 33, 65},      {3, 31, 7},          {5, 70, 576},
      {12, 64, 1000},    {13, 96, 2500},   {17, 100, 300},   {31, 5, 129},        {32, 64, 4096},
      {100, 40, 72},     {300, 33, 40},    {1, 64, 128, 64}, {7, 40, 96, 32},     {37, 70, 384, 96},
      {9, 33, 256, 128}, {40, 70, 64, 32}, {35, 34, 17000},  {33, 40, 16640, 128}};
  for (int64_t rows = 1; rows <= 26; ++rows) shapes.push_back({rows, 48, 136});
  int i = 0;
  for (Shape s : shapes) {
    s.bias = (i & 1) != 0;
    s.accumulate = (i & 2) != 0;
    s.grouped_activations = s.group != 0 && (i & 1) != 0;
    ++i;
    for (const int w_bits : {4, 8}) {
      for (const int a_bits : {4, 8, 2 + i % 7}) {
        const Problem p(s, w_bits, a_bits, random, any);
        EXPECT_TRUE(same_bits(p.expected(), p.result(kernels())))
            << s.rows << " x " << s.outputs << " x " << s.inputs << " in groups of " << s.group
            << ", W" << w_bits << "A" << a_bits;
      }
    }
  }
}

// The sums farthest from zero: u = 15 or 255 (w highest) with the most negative activation, for
// longer than 16-bit partial sums stay exact, and the other three corners.
TEST_P(GemmTest, ExtremeValuesDoNotOverflow) {
  Random random(2);
  for (const int a_bits : {2, 3, 4, 5, 6, 7, 8}) {
    for (const int w_bits : {4, 8}) {
      for (int corner = 0; corner < 4; ++corner) {
        bool weight = false;
        const auto extreme = [&](int lowest, int highest) {
          return static_cast<int8_t>((corner >> (weight ? 0 : 1) & 1) != 0 ? highest : lowest);
        };
        // Problem draws all weights, then all activations.
        int64_t drawn = 0;
        const Shape s = {3, 33, 4 * 1088};
        const auto value = [&](int lowest, int highest) {
          weight = drawn++ < s.outputs * s.inputs;
          return extreme(lowest, highest);
        };
        const Problem p(s, w_bits, a_bits, random, value);
        EXPECT_TRUE(same_bits(p.expected(), p.result(kernels())))
            << "W" << w_bits << "A" << a_bits << " corner " << corner;
      }
    }
  }
}

TEST_P(GemmTest, LongestRowsStayExact) {
  Random random(3);
  const auto lowest = [](int low, int) { return static_cast<int8_t>(low); };
  const Problem p({1, 2, 131071}, 8, 8, random, lowest);
  EXPECT_TRUE(same_bits(p.expected(), p.result(kernels())));
}

TEST_P(GemmTest, ThreadsAndOtherRowsChangeNothing) {
  Random random(4);
  const auto any = [&](int lowest, int highest) {
    return static_cast<int8_t>(lowest +
                               static_cast<int>(random.below(static_cast<uint64_t>(highest) -
                                                             static_cast<uint64_t>(lowest) + 1)));
  };
  const Problem p({700, 160, 1536}, 4, 4, random, any);
  const int threads = thread_count();
  const Matrix expected = p.expected();
  for (const int count : {1, 2, 3, 7}) {
    set_thread_count(count);
    EXPECT_TRUE(same_bits(expected, p.result(kernels())));
  }
  set_thread_count(threads);
}

// As some languages' threads have; nothing may be written below it.
TEST_P(GemmTest, ASmallStackSuffices) {
  Random random(5);
  const Problem p({64, 96, 512}, 4, 8, random,
                  [](int lowest, int) { return static_cast<int8_t>(lowest); });
  struct Work {
    const Problem& problem;
    const Kernels& kernels;
    Matrix result;
  } work{p, kernels(), {}};
  const auto run = [](void* argument) -> void* {
    auto& w = *static_cast<Work*>(argument);
    w.result = w.problem.result(w.kernels);
    return nullptr;
  };
  constexpr size_t kStack = 256 << 10;
  constexpr size_t kBelow = 4 << 20;
  void* memory = ::mmap(nullptr, kBelow + kStack, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  void* stack = static_cast<std::byte*>(memory) + kBelow;
  ASSERT_EQ(::mprotect(stack, kStack, PROT_READ | PROT_WRITE), 0);
  pthread_attr_t attributes;
  ASSERT_EQ(::pthread_attr_init(&attributes), 0);
  ASSERT_EQ(::pthread_attr_setstack(&attributes, stack, kStack), 0);
  pthread_t thread;
  ASSERT_EQ(::pthread_create(&thread, &attributes, run, &work), 0);
  ASSERT_EQ(::pthread_join(thread, nullptr), 0);
  ::pthread_attr_destroy(&attributes);
  ::munmap(memory, kBelow + kStack);
  EXPECT_TRUE(same_bits(p.expected(), work.result));
}

INSTANTIATE_TEST_SUITE_P(Isa, GemmTest, every_isa(), isa_name);

TEST(Dispatch, UnknownNamesListWhatIsThere) {
  EXPECT_EQ((*find_kernels("scalar"))->name, "scalar");
  EXPECT_TRUE((*find_kernels(""))->available());
  const auto unknown = find_kernels("sse9");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(unknown.error().message().find("scalar"), std::string::npos);
}

TEST(PackWeight, RefusesWhatDoesNotFit) {
  const BasicMatrix<int8_t> values(4, 96, int8_t{1});
  EXPECT_TRUE(pack_weight(4, values.view(), Matrix(4, 1, 1.0F)).ok());
  EXPECT_TRUE(pack_weight(4, values.view(), Matrix(4, 3, 1.0F)).ok());
  EXPECT_FALSE(pack_weight(5, values.view(), Matrix(4, 1, 1.0F)).ok());
  EXPECT_FALSE(pack_weight(4, values.view(), Matrix(3, 1, 1.0F)).ok());
  EXPECT_FALSE(pack_weight(4, values.view(), Matrix(4, 6, 1.0F)).ok());
  EXPECT_FALSE(pack_weight(4, values.view(), Matrix(4, 1, 1.0F), std::vector<float>(3)).ok());
}

// Worked by hand: output 0 holds w = k − 8 for inputs 0…7, so that u = k.
TEST(PackWeight, LayoutIsAsDocumented) {
  BasicMatrix<int8_t> values(1, 8);
  for (int k = 0; k < 8; ++k) values(0, k) = static_cast<int8_t>(k - 8);
  const auto packed = pack_weight(4, values.view(), Matrix(1, 1, 2.0F));
  ASSERT_TRUE(packed.ok());
  const uint8_t expected[] = {0x40, 0x51, 0x62, 0x73, 0x88};
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(packed->data[i], expected[i]);
  EXPECT_EQ(packed->data.size(), 32U * 64 / 2);
  EXPECT_EQ(packed->scales[0], 2.0F);
}

}  // namespace
}  // namespace quarot::cpu
