// Functions of CUDA's driver, found when they are needed: a program linked to it would not start on
// a machine without a GPU.
#pragma once

#include <cuda.h>

#include "kernels/cuda/check.h"

namespace quarot::cuda {

// The function of this name as CUDA 12.0 has it; Function as <cuda.h> declares it. Ask once and
// keep it.
template <typename Function>
Result<Function> driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult outcome{};
  constexpr unsigned kVersion = 12000;
  const bool ok = cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault,
                                                   &outcome) == cudaSuccess;
  if (!ok || outcome != cudaDriverEntryPointSuccess || found == nullptr) {
    return error(ErrorCode::kUnsupported,
                 "CUDA's driver has no {}: expected one of CUDA 12 or newer", name);
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace quarot::cuda
