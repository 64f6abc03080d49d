// Rows whose factor is a Hadamard matrix that the compiler knows (RowRotation::known).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/fused/fused.h"

namespace quarot::cuda {

// quantize_rows of such rows, float32, checked already.
Status rotate_column_rows(const Rows& rows, cudaStream_t stream);

}  // namespace quarot::cuda
