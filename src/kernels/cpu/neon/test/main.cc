// The NEON kernels against the references, without a test framework: cross-compiled and run by an
// emulator (see CMakeLists.txt). Exits with the number of cases that differ.
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/memory.h"
#include "base/random.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/rows.h"
#include "kernels/reference/cache.h"
#include "kernels/reference/gemm.h"
#include "kernels/reference/rows.h"

namespace quarot::cpu {
namespace {

template <typename T>
bool same_bits(const BasicMatrix<T>& x, const BasicMatrix<T>& y) {
  return std::memcmp(x.data(), y.data(), static_cast<size_t>(x.size()) * sizeof(T)) == 0;
}

// Activations of −128 with some weights at their highest: the farthest sums.
bool gemm_equals(const Kernels& kernels, int64_t rows, int64_t outputs, int64_t inputs, int bits) {
  Random random(static_cast<uint64_t>(rows * inputs));
  BasicMatrix<int8_t> w(outputs, inputs);
  BasicMatrix<int8_t> a(rows, inputs);
  BasicMatrix<int8_t> padded(rows, activation_stride(inputs), int8_t{0});
  BasicMatrix<int32_t> sums(rows, 1, 0);
  const int half = 1 << (bits - 1);
  for (int8_t& v : w.elements()) {
    v = static_cast<int8_t>(random.below(4) == 0 ? half - 1
                                                 : static_cast<int>(random.below(2 * half)) - half);
  }
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t k = 0; k < inputs; ++k) {
      const int v = random.below(4) == 0 ? -128 : static_cast<int>(random.below(256)) - 128;
      a(t, k) = padded(t, k) = static_cast<int8_t>(v);
      sums(t, 0) += v;
    }
  }
  const Matrix scales(outputs, 1, 0.01F);
  const Matrix a_scales(rows, 1, 0.3F);
  Matrix expected(rows, outputs);
  Matrix y(rows, outputs);
  reference::gemm({.rows = rows,
                   .outputs = outputs,
                   .inputs = inputs,
                   .a = a.data(),
                   .w = w.data(),
                   .a_scales = a_scales.data(),
                   .w_scales = scales.data(),
                   .y = expected.data()});
  gemm(kernels,
       {.rows = rows,
        .values = padded.data(),
        .stride = padded.cols(),
        .scales = a_scales.data(),
        .sums = sums.data()},
       *pack_weight(bits, w.view(), scales), y);
  return same_bits(expected, y);
}

bool rows_equal(const Kernels& kernels, int64_t width) {
  Random random(static_cast<uint64_t>(width));
  Matrix x(3, width);
  for (float& v : x.elements()) v = static_cast<float>(random.normal());
  Matrix expected(3, width);
  Matrix y(3, width);
  RowTask t = {.rows = 3, .width = width, .source = RowSource::kSwiGlu, .x = x.data()};
  t.x_stride = t.up_stride = t.y_stride = width;
  t.up = x.data();
  t.y = expected.data();
  reference::rows(t);
  t.y = y.data();
  rows(kernels, t);
  return same_bits(expected, y);
}

// 40 tokens of one KV head into the cache, then 6 queries of the last of them.
bool cache_equals(const Kernels& kernels, int64_t head_dim, int bits) {
  constexpr int64_t kTokens = 40;
  constexpr int64_t kHeads = 6;
  Random random(static_cast<uint64_t>(head_dim + bits));
  Matrix x(kTokens, head_dim);
  Matrix q(1, kHeads * head_dim);
  for (Matrix* m : {&x, &q}) {
    for (float& v : m->elements()) v = static_cast<float>(random.normal());
  }
  const CacheLayout layout = {head_dim, bits, bits, 1};
  const auto written = [&](const auto& write) {
    AlignedVector<std::byte> memory(static_cast<size_t>(2 * layout.page_bytes()));
    std::memset(memory.data(), 0, memory.size());
    std::byte* pages[] = {memory.data(), memory.data() + layout.page_bytes()};
    std::vector<CacheToken> at;
    for (int64_t i = 0; i < kTokens; ++i) at.push_back({pages, i});
    HeadsTask t = {.tokens = kTokens, .heads = 1, .head_dim = head_dim, .x = x.data()};
    t.x_stride = head_dim;
    t.cache = at.data();
    t.layout = &layout;
    t.clip = 0.95F;
    for (const bool values : {false, true}) {
      t.values = values;
      write(t);
    }
    return memory;
  };
  const AlignedVector<std::byte> expected_pages = written(reference::heads);
  AlignedVector<std::byte> pages = written([&](const HeadsTask& t) { heads(kernels, t); });
  if (pages != expected_pages) return false;
  Matrix expected(1, kHeads * head_dim);
  Matrix y(1, kHeads * head_dim);
  std::byte* places[] = {pages.data(), pages.data() + layout.page_bytes()};
  const CacheToken last = {places, kTokens - 1};
  AttentionTask t = {.tokens = 1, .heads = kHeads, .kv_heads = 1, .q = q.data()};
  t.q_stride = t.y_stride = q.cols();
  t.cache = &last;
  t.layout = &layout;
  t.y = expected.data();
  reference::attention(t);
  t.y = y.data();
  attention(kernels, t);
  return same_bits(expected, y);
}

int differing(const char* isa) {
  const auto kernels = find_kernels(isa);
  if (!kernels.ok()) {
    std::puts(kernels.error().message().c_str());
    return 1;
  }
  int count = 0;
  for (const int bits : {4, 8}) {
    for (const int64_t rows : {1, 2, 3, 4, 9, 12, 27}) {
      for (const int64_t inputs : {7, 64, 576, 1100}) {
        count += gemm_equals(**kernels, rows, 45, inputs, bits) ? 0 : 1;
      }
    }
  }
  for (const int64_t width : {5, 64, 100}) count += rows_equal(**kernels, width) ? 0 : 1;
  for (const int64_t head_dim : {32, 64, 96}) {
    for (const int bits : {2, 3, 4, 8, 32})
      count += cache_equals(**kernels, head_dim, bits) ? 0 : 1;
  }
  std::printf("%s: %d cases differ\n", isa, count);
  return count;
}

}  // namespace
}  // namespace quarot::cpu

int main() { return quarot::cpu::differing("neondot") + quarot::cpu::differing("neoni8mm"); }
