// Writing the quantised KV cache and attending to it (kernels/cache_task.h), on all threads.
#pragma once

#include "kernels/cache_task.h"
#include "kernels/cpu/dispatch.h"
#include "quarot/status.h"

namespace quarot::cpu {

// kInvalidArgument unless the layout is one that the kernels read.
Status check(const CacheLayout& layout);

void heads(const Kernels& kernels, const HeadsTask& task);
void attention(const Kernels& kernels, const AttentionTask& task);

}  // namespace quarot::cpu
