#include "base/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>

#if defined(__SANITIZE_THREAD__)
#define QUAROT_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define QUAROT_TSAN 1
#endif
#endif

#ifdef QUAROT_TSAN
#include <thread>
#include <vector>
#endif

namespace quarot {

namespace {

// OpenMP's own number holds for the thread that sets it, and no other.
std::atomic<int> g_threads = 0;  // 0: not set

}  // namespace

int thread_count() {
  const int set = g_threads;
  return set > 0 ? set : omp_get_max_threads();
}

void set_thread_count(int count) { g_threads = std::max(count, 1); }

void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  const int64_t parts = std::min<int64_t>(thread_count(), count / std::max<int64_t>(grain, 1));
  if (parts <= 1 || omp_in_parallel() != 0) {
    if (count > 0) body(0, count);
    return;
  }
  const auto part = [&](int64_t i) { body(count * i / parts, count * (i + 1) / parts); };
#ifdef QUAROT_TSAN
  // The OpenMP runtime is not instrumented: its barriers would look like races.
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < parts; ++i) threads.emplace_back(part, i);
  part(0);
  for (std::thread& thread : threads) thread.join();
#else
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
  for (int64_t i = 0; i < parts; ++i) part(i);
#endif
}

void parallel_each(int64_t count, FunctionRef<void(int64_t)> body) {
  std::atomic<int64_t> next = 0;
  parallel_for(std::min<int64_t>(thread_count(), count), 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < count; i = next++) body(i);
  });
}

}  // namespace quarot
