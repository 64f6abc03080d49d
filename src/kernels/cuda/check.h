// Launch errors as Status, and what the host must know of a device to choose a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace quarot::cuda {

// The error of a runtime call, if it was one: "gemm: out of memory (cudaErrorMemoryAllocation)".
inline Status check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  const ErrorCode kind =
      code == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported;
  return error(kind, "{}: {} ({})", what, cudaGetErrorString(code), cudaGetErrorName(code));
}

// The error of the launch just before it (not of the kernel's run: nothing is waited for).
inline Status check_launch(const char* what) { return check(cudaGetLastError(), what); }

struct Device {
  int capability = 0;  // major · 10 + minor
  int multiprocessors = 0;
  int shared_memory = 0;  // bytes a block may opt in to
};

// The current device; asked once a thread and device.
inline Result<Device> current_device() {
  constexpr int kMaxDevices = 64;
  thread_local Device known[kMaxDevices];
  int id = 0;
  QUAROT_RETURN_IF_ERROR(check(cudaGetDevice(&id), "cudaGetDevice"));
  if (id < kMaxDevices && known[id].capability != 0) return known[id];
  Device device;
  int major = 0;
  int minor = 0;
  struct {
    int* value;
    cudaDeviceAttr attribute;
  } const queries[] = {{&major, cudaDevAttrComputeCapabilityMajor},
                       {&minor, cudaDevAttrComputeCapabilityMinor},
                       {&device.multiprocessors, cudaDevAttrMultiProcessorCount},
                       {&device.shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin}};
  for (const auto& query : queries) {
    QUAROT_RETURN_IF_ERROR(
        check(cudaDeviceGetAttribute(query.value, query.attribute, id), "cudaDeviceGetAttribute"));
  }
  device.capability = 10 * major + minor;
  if (id < kMaxDevices) known[id] = device;
  return device;
}

}  // namespace quarot::cuda
