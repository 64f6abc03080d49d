// The CPU kernels against this machine's measured peaks. On a shared machine only ratios mean
// something: kernel and peak take turns of about a millisecond, and the ratio shown is the median
// over the turns.
//
//   cpu_kernels_bench --benchmark_filter=gemm/avx2     QUAROT_THREADS=1 for one core
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/peaks.h"
#include "kernels/cpu/rows.h"

namespace quarot::cpu {
namespace {

struct Shape {
  int64_t rows, inputs, outputs, group;
};

PackedWeight random_weight(const Shape& s, int bits, Random& random) {
  BasicMatrix<int8_t> values(s.outputs, s.inputs);
  const int half = 1 << (bits - 1);
  for (int8_t& v : values.elements()) {
    v = static_cast<int8_t>(static_cast<int>(random.below(uint64_t(2 * half))) - half);
  }
  const int64_t groups = s.group == 0 ? 1 : s.inputs / s.group;
  return *pack_weight(bits, values.view(), Matrix(s.outputs, groups, 0.01F));
}

// One thread is timed by the processor time it gets, whatever else runs; several only by the clock.
double now() {
  timespec t{};
  clock_gettime(thread_count() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <typename Work>
double seconds(const Work& work) {
  const double start = now();
  work();
  return now() - start;
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

// Runs `work`, which does `amount` of something, in turns with `peak`, which returns its amount.
template <typename Work, typename Peak>
void take_turns(benchmark::State& state, const char* unit, double amount, const Work& work,
                const Peak& peak) {
  constexpr double kTurn = 1e-3;
  const auto repeats = static_cast<int>(kTurn / seconds(work)) + 1;
  std::vector<double> rates;
  std::vector<double> ratios;
  for (auto _ : state) {
    const double elapsed = seconds([&] {
      for (int i = 0; i < repeats; ++i) work();
    });
    double done = 0;
    const double elapsed_peak = seconds([&] { done = static_cast<double>(peak()); });
    state.SetIterationTime(elapsed / repeats);
    rates.push_back(amount * repeats / elapsed);
    ratios.push_back(rates.back() * elapsed_peak / done);
  }
  state.counters[fmt::format("G{}/s", unit)] = median(rates) / 1e9;
  state.counters["of_peak"] = median(ratios);
}

void gemm_speed(benchmark::State& state, const Kernels& kernels, const Shape& s, int w_bits,
                int a_bits) {
  Random random(1);
  // Enough copies that a matrix is not in the cache when it is its turn again, as in a model.
  std::vector<PackedWeight> weights = {random_weight(s, w_bits, random)};
  const auto bytes = static_cast<double>(weights[0].data.size());
  while (s.rows <= 8 && static_cast<double>(weights.size()) * bytes < 96e6) {
    weights.push_back(weights[0]);
  }
  BasicMatrix<int8_t> values(s.rows, activation_stride(s.inputs), int8_t{1});
  for (int8_t& v : values.elements()) v = static_cast<int8_t>(random.below(15)) - 7;
  const Matrix scales(s.rows, 1, 0.01F);
  const BasicMatrix<int32_t> sums(s.rows, weights[0].groups(), 1);
  Matrix y(s.rows, s.outputs);
  const Activations a = {.rows = s.rows,
                         .bits = a_bits,
                         .values = values.data(),
                         .stride = values.cols(),
                         .scales = scales.data(),
                         .sums = sums.data()};
  size_t next = 0;
  const auto work = [&] {
    gemm(kernels, a, weights[next], y);
    next = (next + 1) % weights.size();
  };
  if (s.rows <= 8) {
    take_turns(state, "B", bytes, work, run_read_peak);
  } else {
    take_turns(state, "MAC", static_cast<double>(s.rows * s.inputs * s.outputs), work,
               [&] { return run_dot_peak(kernels); });
  }
}

void register_gemm(const Kernels& kernels) {
  constexpr Shape kShapes[] = {{2048, 576, 1536, 0}, {512, 4096, 4096, 0},   {512, 576, 1536, 0},
                               {128, 1536, 576, 0},  {512, 4096, 4096, 128}, {16, 576, 1536, 0},
                               {1, 576, 1536, 0},    {1, 1536, 576, 0},      {1, 4096, 4096, 0},
                               {4, 4096, 4096, 0},   {8, 4096, 4096, 0}};
  constexpr int kBits[][2] = {{4, 4}, {4, 8}, {8, 8}};
  for (const Shape& s : kShapes) {
    for (const auto& [w_bits, a_bits] : kBits) {
      const std::string name =
          fmt::format("gemm/{}/{}x{}x{}{}/w{}a{}", kernels.name, s.rows, s.inputs, s.outputs,
                      s.group ? "g128" : "", w_bits, a_bits);
      benchmark::RegisterBenchmark(name.c_str(), [&, s, w = w_bits, a = a_bits](auto& state) {
        gemm_speed(state, kernels, s, w, a);
      })->UseManualTime();
    }
  }
}

// One layer's attention of one new token at a depth: bytes of cache against the read peak.
void attention_speed(benchmark::State& state, const Kernels& kernels, int bits, int64_t depth,
                     int64_t tokens) {
  constexpr int64_t kHeads = 9;
  constexpr int64_t kKvHeads = 3;
  const CacheLayout layout = {.head_dim = 64, .k_bits = bits, .v_bits = bits};
  const int64_t page_bytes = layout.page_bytes() * kKvHeads;
  const int64_t pages = (depth + kPageTokens - 1) / kPageTokens;
  AlignedVector<std::byte> memory(static_cast<size_t>(pages * page_bytes));
  std::ranges::fill(memory, std::byte{0});
  std::vector<std::byte*> table;
  for (int64_t i = 0; i < pages; ++i) table.push_back(memory.data() + i * page_bytes);
  std::vector<CacheToken> at;
  for (int64_t i = 0; i < tokens; ++i) at.push_back({table.data(), depth - tokens + i});
  const Matrix q(tokens, kHeads * layout.head_dim, 0.1F);
  Matrix y(tokens, kHeads * layout.head_dim);
  const AttentionTask task = {.tokens = tokens,
                              .heads = kHeads,
                              .kv_heads = kKvHeads,
                              .q = q.data(),
                              .q_stride = q.cols(),
                              .cache = at.data(),
                              .layout = &layout,
                              .y = y.data(),
                              .y_stride = y.cols()};
  take_turns(
      state, "B", static_cast<double>(memory.size()), [&] { attention(kernels, task); },
      run_read_peak);
}

// One fused row operation over 128 tokens: bytes of float read against the read peak.
void rows_speed(benchmark::State& state, const Kernels& kernels, RowSource source, int64_t width,
                const HadamardTask* hadamard) {
  constexpr int64_t kRows = 128;
  const Matrix x(kRows, width, 0.5F);
  BasicMatrix<int8_t> values(kRows, activation_stride(width));
  Matrix scales(kRows, 1);
  BasicMatrix<int32_t> sums(kRows, 1);
  RowTask task = {
      .rows = kRows, .width = width, .source = source, .x = x.data(), .x_stride = width};
  task.up = x.data();
  task.up_stride = width;
  task.eps = 1e-5F;
  task.hadamard = hadamard;
  task.bits = 4;
  task.values = values.data();
  task.values_stride = values.cols();
  task.scales = scales.data();
  task.sums = sums.data();
  const int64_t bytes = kRows * width * (source == RowSource::kSwiGlu ? 8 : 4);
  take_turns(
      state, "B", static_cast<double>(bytes), [&] { rows(kernels, task); }, run_read_peak);
}

template <typename Work>
void add(const std::string& name, const Work& work) {
  benchmark::RegisterBenchmark(name.c_str(), work)->UseManualTime();
}

void register_cache(const Kernels& kernels) {
  for (const int bits : {4, 8, 32}) {
    for (const int64_t depth : {2048, 6000}) {
      add(fmt::format("attention/{}/kv{}/depth{}", kernels.name, bits, depth),
          [&kernels, bits, depth](auto& state) {
            attention_speed(state, kernels, bits, depth, 1);
          });
    }
    add(fmt::format("attention/{}/kv{}/prefill128at512", kernels.name, bits),
        [&kernels, bits](auto& state) { attention_speed(state, kernels, bits, 512, 128); });
  }
}

void register_rows(const Kernels& kernels) {
  static const Matrix factor(12, 12, 1.0F);
  static const HadamardTask r4 = {.m = 12, .log2 = 7, .factor = factor.data(), .scale = 0.0255F};
  static const HadamardTask heads = {
      .m = 9, .log2 = 2, .inner = 16, .factor = factor.data(), .scale = 0.166F};
  add(fmt::format("rows/{}/norm", kernels.name),
      [&](auto& state) { rows_speed(state, kernels, RowSource::kRmsNorm, 576, nullptr); });
  add(fmt::format("rows/{}/crosshead", kernels.name),
      [&](auto& state) { rows_speed(state, kernels, RowSource::kCopy, 576, &heads); });
  add(fmt::format("rows/{}/swiglu_r4", kernels.name),
      [&](auto& state) { rows_speed(state, kernels, RowSource::kSwiGlu, 1536, &r4); });
}

}  // namespace
}  // namespace quarot::cpu

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (const char* threads = std::getenv("QUAROT_THREADS")) {
    quarot::set_thread_count(std::atoi(threads));
  }
  for (const auto* kernels : quarot::cpu::compiled_kernels()) {
    if (!kernels->available()) continue;
    quarot::cpu::register_gemm(*kernels);
    quarot::cpu::register_rows(*kernels);
    quarot::cpu::register_cache(*kernels);
  }
  benchmark::RunSpecifiedBenchmarks();
}
