#include "kernels/cpu/rows.h"

#include "base/memory.h"
#include "base/parallel.h"

namespace quarot::cpu {

void rows(const Kernels& kernels, const RowTask& task) {
  constexpr int64_t kElementsPerThread = 1 << 13;  // fewer are not worth waking one
  parallel_for(task.rows, kElementsPerThread / task.width + 1, [&](int64_t first, int64_t last) {
    const int64_t padded = (task.width + 15) / 16 * 16;
    AlignedVector<float> scratch(static_cast<size_t>(2 * padded));
    kernels.floats->rows(task, first, last, scratch.data());
  });
}

}  // namespace quarot::cpu
