// The fused row operations of kernels/row_task.h, on all threads.
#pragma once

#include "kernels/cpu/dispatch.h"
#include "kernels/row_task.h"

namespace quarot::cpu {

void rows(const Kernels& kernels, const RowTask& task);

}  // namespace quarot::cpu
