// What the CUDA benchmarks share: device buffers, random bytes, and the median time of a launch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

namespace quarot::cuda {

// A benchmark has nothing to do after an error but say it.
inline void require(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}

template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count) : count_(count) {
    require(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.size()) { upload(host); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }

  T* get() { return data_; }
  const T* get() const { return data_; }
  size_t size() const { return count_; }
  void upload(const std::vector<T>& host) {
    require(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
            "upload");
  }
  void fill_bytes(int byte) { require(cudaMemset(data_, byte, count_ * sizeof(T)), "memset"); }
  std::vector<T> download() const {
    std::vector<T> host(count_);
    require(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return host;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

// Uniform random 32-bit words (a counter hashed by Murmur3's finaliser), so that timings see real
// data.
template <typename Word>
__global__ void fill_random_words(Word* words, size_t count, Word seed) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    uint32_t h = static_cast<uint32_t>(i) * 0x9e3779b9U ^ seed;
    h = (h ^ h >> 16) * 0x85ebca6bU;
    h = (h ^ h >> 13) * 0xc2b2ae35U;
    words[i] = h ^ h >> 16;
  }
}
inline void fill_random(void* data, size_t bytes, uint32_t seed) {
  fill_random_words<<<1024, 256>>>(static_cast<uint32_t*>(data), bytes / 4, seed);
  require(cudaGetLastError(), "fill_random");
}

// Median milliseconds of `launch(i)`, i = 0, 1, …: one sample is `repeat` launches between two
// events; choose the buffers by i so that none is still in L2 when it comes round again.
template <typename Launch>
double median_ms(Launch&& launch, int samples = 21, int repeat = 8) {
  cudaEvent_t begin;
  cudaEvent_t end;
  require(cudaEventCreate(&begin), "cudaEventCreate");
  require(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> times;
  int i = 0;
  for (int sample = -2; sample < samples; ++sample) {  // the first two warm up
    require(cudaEventRecord(begin), "cudaEventRecord");
    for (int r = 0; r < repeat; ++r) launch(i++);
    require(cudaEventRecord(end), "cudaEventRecord");
    require(cudaEventSynchronize(end), "kernel");
    float ms = 0;
    require(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (sample >= 0) times.push_back(static_cast<double>(ms) / repeat);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + samples / 2, times.end());
  return times[static_cast<size_t>(samples / 2)];
}

}  // namespace quarot::cuda
