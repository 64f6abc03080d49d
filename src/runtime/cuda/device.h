// Memory and streams of the GPU, with errors as values.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/check.h"
#include "runtime/cuda/blas.h"

namespace quarot::cuda {

// kUnsupported, saying what to do, where there is no GPU that CUDA can use.
Status check_device();

// kOutOfMemory, with the numbers, unless the GPU has `bytes` free for `what`.
Status check_memory(int64_t bytes, const char* what);

// Of the GPU's memory, free or not.
Result<int64_t> total_bytes();

// Taken of the GPU's memory, by whomever; 0 without one.
int64_t used_bytes();

// Device memory of at least so many bytes; null for none.
Result<void*> allocate(int64_t bytes, const char* what);

// Between memories that the GPU reads, and from or to others of the host.
Status copy_floats(float* to, const float* from, int64_t count, cudaStream_t stream);

// Elements on the GPU.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(DeviceArray&& other) noexcept { swap(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    DeviceArray(std::move(other)).swap(*this);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }

  // Uninitialised.
  static Result<DeviceArray> make(int64_t count, const char* what) {
    DeviceArray array;
    QUAROT_ASSIGN_OR_RETURN(void* const data,
                            allocate(count * static_cast<int64_t>(sizeof(T)), what));
    array.data_ = static_cast<T*>(data);
    array.size_ = count;
    return array;
  }
  static Result<DeviceArray> upload(std::span<const T> host, const char* what) {
    QUAROT_ASSIGN_OR_RETURN(DeviceArray array, make(static_cast<int64_t>(host.size()), what));
    QUAROT_RETURN_IF_ERROR(check(
        cudaMemcpy(array.data_, host.data(), host.size_bytes(), cudaMemcpyHostToDevice), what));
    return array;
  }
  // As many as `count` at least; the contents are lost where there were fewer. True: they were.
  Result<bool> grow(int64_t count, const char* what) {
    if (count <= size_) return false;
    *this = DeviceArray();  // first, so that both need not fit
    QUAROT_ASSIGN_OR_RETURN(*this, make(count, what));
    return true;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  void swap(DeviceArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

// Elements of host memory that the GPU copies from and to at the bus's full speed.
template <typename T>
class PinnedArray {
 public:
  PinnedArray() = default;
  PinnedArray(PinnedArray&& other) noexcept { swap(other); }
  PinnedArray& operator=(PinnedArray&& other) noexcept {
    PinnedArray(std::move(other)).swap(*this);
    return *this;
  }
  ~PinnedArray() { cudaFreeHost(data_); }

  // As many as `count` at least; the contents are lost where there were fewer.
  Status grow(int64_t count, const char* what) {
    if (count <= size_) return {};
    *this = PinnedArray();
    void* data = nullptr;
    QUAROT_RETURN_IF_ERROR(
        check(cudaMallocHost(&data, static_cast<size_t>(count) * sizeof(T)), what));
    data_ = static_cast<T*>(data);
    size_ = count;
    return {};
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  void swap(PinnedArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

// A stream, and products on it.
class Context {
 public:
  static Result<Context> create();
  Context(Context&& other) noexcept
      : stream_(std::exchange(other.stream_, nullptr)), blas_(std::move(other.blas_)) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  Context& operator=(Context&&) = delete;
  ~Context();

  cudaStream_t stream() const { return stream_; }
  const Blas& blas() const { return blas_; }
  Status wait() const { return check(cudaStreamSynchronize(stream_), "the GPU"); }

  // y [rows, outputs] ← x·wᵀ, or y + x·wᵀ; x [rows, inputs], w [outputs, inputs]. No gaps between
  // rows.
  Status multiply(const float* x, int64_t rows, const float* w, int64_t outputs, int64_t inputs,
                  float* y, bool accumulate = false) const;

  // m [outputs, inputs] ← keep · m + factor · yᵀ·x; y [rows, outputs], x [rows, inputs].
  Status add_moment(float factor, const float* y, int64_t outputs, const float* x, int64_t inputs,
                    int64_t rows, float keep, float* m) const;

 private:
  explicit Context(cudaStream_t stream) : stream_(stream), blas_(stream) {}
  cudaStream_t stream_;
  Blas blas_;
};

}  // namespace quarot::cuda
