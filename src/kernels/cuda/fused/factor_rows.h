// Many rows whose rotation has a dense factor beside a Walsh transform.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/fused/fused.h"

namespace quarot::cuda {

// Whether rotate_factor_rows takes them: 32 to 256 columns, a power of two, and rows that a block
// can hold.
bool suits_factor_rows(const Rows& rows);

// quantize_rows of such rows, checked already; to the same bits as by rotate_row.
Status rotate_factor_rows(const Rows& rows, cudaStream_t stream);

}  // namespace quarot::cuda
