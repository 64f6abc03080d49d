// What this machine can do at best: the yardsticks of every kernel's speed. Each runs on all
// threads of base/parallel.h for about a millisecond and returns how much it did; the caller times
// it (on a busy machine in turns with the kernel, taking the median of the ratios).
#pragma once

#include "kernels/cpu/dispatch.h"

namespace quarot::cpu {

// Multiply-adds of bytes, from registers only.
int64_t run_dot_peak(const Kernels& kernels);

// Multiply-adds of floats, from registers only.
int64_t run_float_peak(const Kernels& kernels);

// Bytes read from a buffer far larger than the caches.
int64_t run_read_peak();

}  // namespace quarot::cpu
