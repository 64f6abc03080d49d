// Compiled without fused multiply-add, and each group the work of one thread: the operations of
// quant/page_quant.cc in their order.
#include "kernels/cuda/plain/page.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cache_task.h"
#include "kernels/cuda/check.h"

namespace quarot::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = static_cast<int>(quarot::kPageTokens);

// Of the elements in shared memory, [token][head_dim], the i-th of a group is at first + i · step.
struct Group {
  int first;
  int step;
  int count;
};

__device__ Group group_at(const PageTask& t, int index) {
  const int dim = static_cast<int>(t.head_dim);
  if (t.by_channel) return {index, dim, kTokens};
  const int count = static_cast<int>(t.group);
  return {index * count, 1, count};
}

// How far each element lies from the mean of its group, in standard deviations; NaN: infinitely.
__device__ void measure(const Group& g, const float* x, float* distance) {
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < g.count; ++i) {
    const double value = x[g.first + i * g.step];
    sum += value;
    squares += value * value;
  }
  const double mean = sum / g.count;
  const double variance = squares / g.count - mean * mean;
  const double unit = variance > 0 ? 1 / sqrt(variance) : 0;
  for (int i = 0; i < g.count; ++i) {
    const int at = g.first + i * g.step;
    const double d = fabs(x[at] - mean) * unit;
    distance[at] = isnan(d) ? INFINITY : static_cast<float>(d);
  }
}

// The largest distance that at least `wanted` elements reach: bits of floats above 0 are ordered
// as they are.
__device__ float outlier_distance(const float* distance, int size, int wanted) {
  __shared__ int reached;
  unsigned found = 0;
  for (unsigned bit = 1U << 30; bit > 0; bit >>= 1) {
    const unsigned candidate = found | bit;
    if (threadIdx.x == 0) reached = 0;
    __syncthreads();
    int mine = 0;
    for (int i = threadIdx.x; i < size; i += kThreads) {
      mine += __float_as_uint(distance[i]) >= candidate ? 1 : 0;
    }
    atomicAdd(&reached, mine);
    __syncthreads();
    if (reached >= wanted) found = candidate;
    __syncthreads();
  }
  return __uint_as_float(found);
}

__device__ void quantize(const PageTask& t, const Group& g, float outlier, const float* distance,
                         float* x) {
  float a = INFINITY;
  float b = -INFINITY;
  for (int i = 0; i < g.count; ++i) {
    const int at = g.first + i * g.step;
    if (distance[at] >= outlier) continue;
    a = x[at] < a ? x[at] : a;
    b = b < x[at] ? x[at] : b;
  }
  if (!(a < b)) return;  // all alike: exact
  const auto steps = static_cast<float>((1 << t.bits) - 1);
  const float scale = t.clip * (b - a) / steps;
  const float lowest = (a + b) / 2 - t.clip * (b - a) / 2;
  for (int i = 0; i < g.count; ++i) {
    const int at = g.first + i * g.step;
    if (distance[at] >= outlier) continue;
    const float q = rintf((x[at] - lowest) / scale);
    x[at] = lowest + scale * (q < 0 ? 0 : steps < q ? steps : q);
  }
}

// RoPE, or its inverse: some models' tables have a length other than 1.
__device__ void turn(const PageTask& t, bool back, float* x) {
  const int half = static_cast<int>(t.rotary / 2);
  for (int i = threadIdx.x; i < kTokens * half; i += kThreads) {
    const float2 r = t.rope[i];
    float* low = x + i / half * t.head_dim + i % half;
    const float a = low[0];
    const float b = low[half];
    if (back) {
      const float length = r.x * r.x + r.y * r.y;
      low[0] = (a * r.x + b * r.y) / length;
      low[half] = (b * r.x - a * r.y) / length;
    } else {
      low[0] = a * r.x - b * r.y;
      low[half] = b * r.x + a * r.y;
    }
  }
  __syncthreads();
}

// A block has a head.
__global__ void __launch_bounds__(kThreads) page_kernel(const PageTask t) {
  extern __shared__ float x[];
  const int dim = static_cast<int>(t.head_dim);
  const int size = kTokens * dim;
  float* distance = x + size;
  float* memory = t.x + blockIdx.x * t.head_dim;
  for (int i = threadIdx.x; i < size; i += kThreads) x[i] = memory[i / dim * t.stride + i % dim];
  __syncthreads();
  if (t.rope != nullptr) turn(t, true, x);
  const int groups = t.by_channel ? dim : size / static_cast<int>(t.group);
  for (int i = threadIdx.x; i < groups; i += kThreads) measure(group_at(t, i), x, distance);
  __syncthreads();
  const int outliers = static_cast<int>(t.outliers * size);
  const float outlier = outliers > 0 ? outlier_distance(distance, size, outliers) : INFINITY;
  for (int i = threadIdx.x; i < groups; i += kThreads) {
    quantize(t, group_at(t, i), outlier, distance, x);
  }
  __syncthreads();
  if (t.rope != nullptr) turn(t, false, x);
  for (int i = threadIdx.x; i < size; i += kThreads) memory[i / dim * t.stride + i % dim] = x[i];
}

}  // namespace

Status simulate_page(const PageTask& task, cudaStream_t stream) {
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  const int64_t bytes = 2 * quarot::kPageTokens * task.head_dim * 4;
  if (bytes > device.shared_memory) {
    return error(ErrorCode::kUnsupported,
                 "pages of heads of {} elements take {} bytes of shared memory, of {}",
                 task.head_dim, bytes, device.shared_memory);
  }
  QUAROT_RETURN_IF_ERROR(check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(page_kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "simulate_page"));
  page_kernel<<<static_cast<unsigned>(task.heads), kThreads, static_cast<size_t>(bytes), stream>>>(
      task);
  return check_launch("simulate_page");
}

}  // namespace quarot::cuda
