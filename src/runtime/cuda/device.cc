#include "runtime/cuda/device.h"

namespace quarot::cuda {

namespace {

double gigabytes(size_t bytes) { return static_cast<double>(bytes) * 1e-9; }

}  // namespace

Status check_device() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices > 0) return {};
  cudaGetLastError();
  return error(ErrorCode::kUnsupported,
               "no GPU that CUDA can use on this machine ({}); run with --device cpu",
               code == cudaSuccess ? "no devices" : cudaGetErrorString(code));
}

Status check_memory(int64_t bytes, const char* what) {
  size_t available = 0;
  size_t total = 0;
  QUAROT_RETURN_IF_ERROR(check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo"));
  if (static_cast<size_t>(bytes) <= available) return {};
  return error(ErrorCode::kOutOfMemory, "{}: {:.2f} GB needed, {:.2f} GB of the GPU's {:.2f} free",
               what, gigabytes(static_cast<size_t>(bytes)), gigabytes(available), gigabytes(total));
}

Result<int64_t> total_bytes() {
  size_t available = 0;
  size_t total = 0;
  QUAROT_RETURN_IF_ERROR(check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo"));
  return static_cast<int64_t>(total);
}

int64_t used_bytes() {
  size_t available = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&available, &total) != cudaSuccess) return 0;
  return static_cast<int64_t>(total - available);
}

Result<void*> allocate(int64_t bytes, const char* what) {
  void* data = nullptr;
  if (bytes == 0) return data;
  const cudaError_t code = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    QUAROT_RETURN_IF_ERROR(check_memory(bytes, what));
  }
  QUAROT_RETURN_IF_ERROR(check(code, what));
  return data;
}

Status copy_floats(float* to, const float* from, int64_t count, cudaStream_t stream) {
  return check(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(float),
                               cudaMemcpyDefault, stream),
               "a copy");
}

Result<Context> Context::create() {
  QUAROT_RETURN_IF_ERROR(check_device());
  cudaStream_t stream = nullptr;
  QUAROT_RETURN_IF_ERROR(check(cudaStreamCreate(&stream), "CUDA's context"));
  return Context(stream);
}

Context::~Context() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Status Context::multiply(const float* x, int64_t rows, const float* w, int64_t outputs,
                         int64_t inputs, float* y, bool accumulate) const {
  return blas_.multiply({.m = outputs, .n = rows, .k = inputs, .beta = accumulate ? 1.0F : 0.0F},
                        {w, inputs, CUBLAS_OP_T}, {x, inputs}, {y, outputs}, "a product");
}

Status Context::add_moment(float factor, const float* y, int64_t outputs, const float* x,
                           int64_t inputs, int64_t rows, float keep, float* m) const {
  return blas_.multiply({.m = inputs, .n = outputs, .k = rows, .alpha = factor, .beta = keep},
                        {x, inputs}, {y, outputs, CUBLAS_OP_T}, {m, inputs}, "second moments");
}

}  // namespace quarot::cuda
