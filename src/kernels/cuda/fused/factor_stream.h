// Many rows whose rotation has a dense factor beside a Walsh transform, on Hopper GPUs.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/fused/fused.h"

namespace quarot::cuda {

// Whether stream_factor_rows takes them: 64 to 256 columns, a power of two, and rows that a
// multiprocessor can hold.
bool suits_factor_stream(const Rows& rows, const Device& device);

// quantize_rows of such rows, checked already; to the same bits as by rotate_row.
Status stream_factor_rows(const Rows& rows, cudaStream_t stream);

}  // namespace quarot::cuda
