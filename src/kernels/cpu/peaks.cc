#include "kernels/cpu/peaks.h"

#include <atomic>
#include <numeric>

#include "base/memory.h"
#include "base/parallel.h"

namespace quarot::cpu {

namespace {

int64_t on_all_threads(int64_t (*peak)(int64_t rounds)) {
  constexpr int64_t kRounds = 200'000;
  std::atomic<int64_t> done = 0;
  parallel_for(thread_count(), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) done += peak(kRounds);
  });
  return done;
}

}  // namespace

int64_t run_dot_peak(const Kernels& kernels) { return on_all_threads(kernels.dot_peak); }
int64_t run_float_peak(const Kernels& kernels) { return on_all_threads(kernels.floats->peak); }

int64_t run_read_peak() {
  // Successive calls read successive parts: a part is out of the caches when its turn comes.
  constexpr int64_t kWords = int64_t{32} << 20;
  constexpr int64_t kPart = int64_t{4} << 20;
  static const AlignedVector<uint64_t> buffer(kWords, 1);
  static std::atomic<int64_t> calls = 0;
  const uint64_t* part = buffer.data() + calls++ * kPart % kWords;
  std::atomic<uint64_t> total = 0;  // keeps the compiler from dropping the sums
  parallel_for(kPart, 1 << 16, [&](int64_t first, int64_t last) {
    total += std::accumulate(part + first, part + last, uint64_t{0});
  });
  return kPart * static_cast<int64_t>(sizeof(uint64_t));
}

}  // namespace quarot::cpu
