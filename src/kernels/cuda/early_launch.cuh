// Programmatic dependent launch: from sm_90 on a kernel may begin while the one before it in the
// stream still runs, so that launching it, and what it does before it waits, cost no time of their
// own. A chain of such kernels needs no other order: each waits for the one before, which did too.
#pragma once

#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda {

// What no kernel writes, into L2, by a block of kThreads: before begin_early.
template <int kThreads>
__device__ __forceinline__ void prefetch_bytes(const void* from, int bytes) {
  constexpr int kLine = 128;
  for (int at = kLine * static_cast<int>(threadIdx.x); at < bytes; at += kLine * kThreads) {
    prefetch_l2(static_cast<const uint8_t*>(from) + at);
  }
}

// First in a kernel launched early. Until wait_early it reads nothing that kernels before it write,
// and writes nothing that they read or write.
__device__ __forceinline__ void begin_early() {
#if __CUDA_ARCH__ >= 900
  dependents_launch();
#endif
}
__device__ __forceinline__ void wait_early() {
#if __CUDA_ARCH__ >= 900
  dependency_wait();
#endif
}

template <typename Args>
Status launch_early(const char* what, void (*kernel)(Args), dim3 grid, int threads, int shared,
                    cudaStream_t stream, std::type_identity_t<Args> args, int cluster = 1) {
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = device.capability < 90 ? 0 : cluster == 1 ? 1 : 2;
  return check(cudaLaunchKernelEx(&config, kernel, args), what);
}

}  // namespace quarot::cuda
