// Rows whose rotation is a Walsh transform alone (RowRotation::log2 > 0).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/fused/fused.h"

namespace quarot::cuda {

// quantize_rows of such rows, checked already.
Status rotate_walsh_rows(const Rows& rows, cudaStream_t stream);

}  // namespace quarot::cuda
