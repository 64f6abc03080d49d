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
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/peaks.h"

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

}  // namespace
}  // namespace quarot::cpu

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (const char* threads = std::getenv("QUAROT_THREADS")) {
    quarot::set_thread_count(std::atoi(threads));
  }
  for (const auto* kernels : quarot::cpu::compiled_kernels()) {
    if (kernels->available()) quarot::cpu::register_gemm(*kernels);
  }
  benchmark::RunSpecifiedBenchmarks();
}
