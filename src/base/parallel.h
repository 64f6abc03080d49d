// Data parallelism over one OpenMP pool.
#pragma once

#include <cstdint>

#include "base/function_ref.h"
#include "quarot/execution.h"  // thread_count()

namespace quarot {

// body(first, last) over disjoint contiguous ranges that cover [0, count). A range holds at least
// `grain` elements where there are so many. Results must not depend on how the ranges are cut.
void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body);

// body(i) for every i in [0, count), each given to the next thread that is free: for work of
// unequal size.
void parallel_each(int64_t count, FunctionRef<void(int64_t)> body);

}  // namespace quarot
