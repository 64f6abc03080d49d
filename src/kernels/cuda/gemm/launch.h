// The paths behind gemm(): each takes a checked problem and says only whether its launch failed.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm/gemm.h"

namespace quarot::cuda {

Status launch_stream(const Gemm& problem, const Device& device, cudaStream_t stream);
Status launch_wgmma(const Gemm& problem, const Device& device, cudaStream_t stream);
// Whether launch_wgmma can gate the product: where its large tiles suit it.
bool wgmma_gates(const Gemm& problem, const Device& device);
Status launch_int4_mma(const Gemm& problem, cudaStream_t stream);
Status launch_int8_mma(const Gemm& problem, cudaStream_t stream);

}  // namespace quarot::cuda
