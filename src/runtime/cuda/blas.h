// cuBLAS on a stream, in which float32 stays float32. The library is loaded when a product first
// needs it: a program that was built for GPUs starts, and runs what has no such product, where it
// is not installed.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "quarot/status.h"

namespace quarot::cuda {

// A matrix by columns, as cuBLAS counts: a row-major one is its transpose there.
template <typename T>
struct Columns {
  T* data;
  int64_t stride;                      // elements from a column to the next
  cublasOperation_t op = CUBLAS_OP_N;  // of an operand
  int64_t batch_stride = 0;            // to the next one's
};

// c [m, n] ← alpha · op(a)·op(b) + beta · c, over k.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1, beta = 0;
};

// kUnsupported, saying what to do, where there is no cuBLAS.
class Blas {
 public:
  explicit Blas(cudaStream_t stream) : stream_(stream) {}
  Blas(Blas&& other) noexcept
      : stream_(other.stream_), handle_(std::exchange(other.handle_, nullptr)) {}
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  Blas& operator=(Blas&&) = delete;
  ~Blas();

  Status multiply(const Product& product, Columns<const float> a, Columns<const float> b,
                  Columns<float> c, const char* what) const;
  // `count` of them, each matrix's batch_stride apart.
  Status multiply_each(const Product& product, Columns<const float> a, Columns<const float> b,
                       Columns<float> c, int64_t count, const char* what) const;
  // Operands of two bytes an element, c of `result`; sums in float32.
  Status multiply_halves(const Product& product, cudaDataType_t type, Columns<const void> a,
                         Columns<const void> b, cudaDataType_t result, Columns<void> c,
                         const char* what) const;
  // y ← y + factor · x
  Status add(float factor, const float* x, int64_t count, float* y, const char* what) const;

 private:
  Status prepare() const;  // the library and the handle

  cudaStream_t stream_;
  mutable cublasHandle_t handle_ = nullptr;
};

}  // namespace quarot::cuda
