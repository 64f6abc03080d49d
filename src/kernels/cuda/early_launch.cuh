// Programmatic dependent launch: from sm_90 on a kernel may begin while the one before it in the
// stream still runs, so that launching it, and what it does before it waits, cost no time of their
// own. A chain of such kernels needs no other order: each waits for the one before, which did too.
#pragma once

#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda {

// First in a kernel launched early, before it reads or writes what other kernels do.
__device__ __forceinline__ void begin_early() {
#if __CUDA_ARCH__ >= 900
  dependents_launch();
  dependency_wait();
#endif
}

template <typename Args>
Status launch_early(const char* what, void (*kernel)(Args), dim3 grid, int threads, int shared,
                    cudaStream_t stream, std::type_identity_t<Args> args) {
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = device.capability >= 90 ? 1 : 0;
  return check(cudaLaunchKernelEx(&config, kernel, args), what);
}

}  // namespace quarot::cuda
