// Compiled without fused multiply-add: every operation is rounded on its own, as in the reference.
#include "kernels/cuda/plain/plain.h"

#include <algorithm>
#include <cfloat>
#include <climits>

#include "base/error.h"
#include "kernels/cuda/check.h"

namespace quarot::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kRowBlocks = 64;  // share the rows of a column
constexpr int kSumLanes = 16;       // partial sums of squares, as in the reference

// A Hadamard as a kernel's argument: m = 0 for none.
HadamardTask hadamard_of(const HadamardTask* task) {
  if (task != nullptr) return *task;
  HadamardTask none;
  none.m = 0;
  return none;
}

__device__ float exp_reference(float x) {
  x = fminf(fmaxf(x, -87.0F), 87.0F);
  const float n = rintf(x * 1.44269504F);
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9841270e-4F;
  for (const float c :
       {1.3888889e-3F, 8.3333333e-3F, 4.1666667e-2F, 1.6666667e-1F, 0.5F, 1.0F, 1.0F}) {
    p = p * r + c;
  }
  return p * __int_as_float((static_cast<int>(n) + 127) << 23);
}

// x ← x / √(mean x² + eps) · gain
__device__ void normalize(float* x, int width, const float* gain, float eps) {
  __shared__ float partial[kSumLanes];
  if (threadIdx.x < kSumLanes) {
    float sum = 0;
    for (int i = threadIdx.x; i < width; i += kSumLanes) sum += x[i] * x[i];
    partial[threadIdx.x] = sum;
  }
  __syncthreads();
  float sums[kSumLanes];
#pragma unroll
  for (int i = 0; i < kSumLanes; ++i) sums[i] = partial[i];
#pragma unroll
  for (int half = kSumLanes / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  const float r = 1.0F / sqrtf(sums[0] / static_cast<float>(width) + eps);
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const float y = x[i] * r;
    x[i] = gain != nullptr ? y * gain[i] : y;
  }
  __syncthreads();
}

// `other` has room for a row too where there is a factor.
__device__ void rotate(const HadamardTask& h, float* x, float* other, int width) {
  const int inner = static_cast<int>(h.inner);
  const int columns = inner << h.log2;
  for (int stride = inner; stride < columns; stride *= 2) {
    for (int pair = threadIdx.x; pair < width / 2; pair += blockDim.x) {
      const int i = pair / stride * 2 * stride + pair % stride;
      const float a = x[i];
      const float b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
    __syncthreads();
  }
  if (h.m == 1) {
    for (int i = threadIdx.x; i < width; i += blockDim.x) x[i] *= h.scale;
    __syncthreads();
    return;
  }
  const int m = static_cast<int>(h.m);
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const int at = i % (m * columns);
    const float* column = x + (i - at) + at % columns;
    const float* factor = h.factor + static_cast<int64_t>(at / columns) * m;
    float sum = 0;
    for (int j = 0; j < m; ++j) sum = fmaf(factor[j], column[j * columns], sum);
    other[i] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += blockDim.x) x[i] = other[i] * h.scale;
  __syncthreads();
}

__device__ float largest_magnitude(const float* x, int count) {
  __shared__ unsigned top;
  if (threadIdx.x == 0) top = 0;
  __syncthreads();
  float mine = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) mine = fmaxf(mine, fabsf(x[i]));
  atomicMax(&top, __float_as_uint(mine));
  __syncthreads();
  const float result = __uint_as_float(top);
  __syncthreads();
  return result;
}

__device__ float symmetric_scale(float largest, int bits, float clip) {
  const auto levels = static_cast<float>((1 << (bits - 1)) - 1);
  const float scale = clip * fminf(largest, FLT_MAX / 2) / levels;
  return scale >= FLT_MIN ? scale : 1.0F;
}

__device__ void quantize(const RowTask& t, const float* x, int64_t row) {
  int8_t* values = t.values + row * t.values_stride;
  const int group = static_cast<int>(t.width / t.scale_groups);
  const auto highest = static_cast<float>((1 << (t.bits - 1)) - 1);
  for (int g = 0; g < t.scale_groups; ++g) {
    const float scale = symmetric_scale(largest_magnitude(x + g * group, group), t.bits, t.clip);
    if (threadIdx.x == 0) t.scales[row * t.scale_groups + g] = scale;
    for (int i = g * group + threadIdx.x; i < (g + 1) * group; i += blockDim.x) {
      const float q = x[i] / scale;
      values[i] =
          static_cast<int8_t>(isnan(q) ? 0.0F : rintf(fminf(fmaxf(q, -highest - 1), highest)));
    }
  }
  for (int64_t i = t.width + threadIdx.x; i < t.values_stride; i += blockDim.x) values[i] = 0;
}

__global__ void __launch_bounds__(kThreads) rows_kernel(const RowTask t, const HadamardTask h) {
  extern __shared__ float x[];
  const int64_t row = blockIdx.x;
  const int width = static_cast<int>(t.width);
  const float* from = t.x + row * t.x_stride;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    float e = from[i];
    if (t.source == RowSource::kSwiGlu) {
      e = e / (1.0F + exp_reference(-e)) * t.up[row * t.up_stride + i];
    }
    x[i] = e;
  }
  __syncthreads();
  if (t.source == RowSource::kRmsNorm) normalize(x, width, t.gain, t.eps);
  if (h.m > 0) rotate(h, x, x + width, width);
  if (t.values != nullptr) {
    quantize(t, x, row);
  } else {
    for (int i = threadIdx.x; i < width; i += kThreads) t.y[row * t.y_stride + i] = x[i];
  }
}

__global__ void heads_kernel(const HeadsTask t, const HadamardTask h) {
  extern __shared__ float x[];
  const int64_t token = blockIdx.x / t.heads;
  const int64_t head = blockIdx.x % t.heads;
  const int width = static_cast<int>(t.head_dim);
  const float* from = t.x + token * t.x_stride + head * t.head_dim;
  for (int i = threadIdx.x; i < width; i += blockDim.x) x[i] = from[i];
  __syncthreads();
  if (t.gain != nullptr) normalize(x, width, t.gain, t.eps);
  const int half = static_cast<int>(t.rotary / 2);
  for (int i = threadIdx.x; t.cos != nullptr && i < half; i += blockDim.x) {
    const float c = t.cos[token * half + i];
    const float s = t.sin[token * half + i];
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * c - b * s;
    x[i + half] = b * c + a * s;
  }
  __syncthreads();
  if (h.m > 0) rotate(h, x, x + width, width);
  float* y = t.y + token * t.y_stride + head * t.head_dim;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const float centre = t.centre != nullptr ? t.centre[head * t.head_dim + i] : 0.0F;
    y[i] = (x[i] - centre) * t.scale;
  }
}

// A warp has a group.
__global__ void __launch_bounds__(kThreads)
    simulate_kernel(float* x, int64_t groups, int64_t row_groups, const Simulation quant) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (index >= groups) return;
  const int64_t first = index % row_groups * quant.group;
  float* row = x + index / row_groups * quant.stride;
  const auto at = [&](int64_t i) -> float& {
    return row[quant.channels != nullptr ? quant.channels[first + i] : first + i];
  };
  float low = 0;
  float high = 0;
  for (int64_t i = threadIdx.x % 32; i < quant.group; i += 32) {
    low = fminf(low, at(i));
    high = fmaxf(high, at(i));
  }
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    low = fminf(low, __shfl_xor_sync(~0U, low, lane));
    high = fmaxf(high, __shfl_xor_sync(~0U, high, lane));
  }
  low = fmaxf(low, -FLT_MAX / 2);
  high = fminf(high, FLT_MAX / 2);
  float scale = symmetric_scale(fmaxf(-low, high), quant.bits, quant.clip);
  float zero = 0;
  auto highest = static_cast<float>((1 << (quant.bits - 1)) - 1);
  float lowest = -highest - 1;
  if (!quant.symmetric) {
    lowest = 0;
    highest = static_cast<float>((1 << quant.bits) - 1);
    scale = (quant.clip * high - quant.clip * low) / highest;
    if (!(scale >= FLT_MIN)) scale = 1;
    zero = rintf(-(quant.clip * low) / scale);
  }
  for (int64_t i = threadIdx.x % 32; i < quant.group; i += 32) {
    const float q = at(i) / scale;
    const float code = isnan(q) ? zero : fminf(fmaxf(rintf(q) + zero, lowest), highest);
    at(i) = scale * (code - zero);
  }
}

// Bits of floats from 0 on are ordered as they are.
__global__ void largest_kernel(const float* x, float* largest, int64_t rows, int64_t width) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= width) return;
  float mine = 0;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    mine = fmaxf(mine, fabsf(x[row * width + column]));
  }
  atomicMax(reinterpret_cast<unsigned*>(largest) + column, __float_as_uint(mine));
}

__global__ void half_kernel(float* x, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) x[i] = __half2float(__float2half_rn(x[i]));
}

__device__ float to_float(float x) { return x; }
__device__ float to_float(__half x) { return __half2float(x); }

template <typename T>
__global__ void embed_kernel(const T* table, const int32_t* tokens, float factor, float* y,
                             int64_t width) {
  const T* row = table + tokens[blockIdx.x] * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    y[blockIdx.x * width + i] = factor * to_float(row[i]);
  }
}

__global__ void split_kernel(const float* x, __half* y, int64_t width) {
  const float* row = x + blockIdx.x * width;
  __half* high = y + 2 * blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    high[i] = __float2half_rn(row[i]);
    high[width + i] = __float2half_rn(row[i] - __half2float(high[i]));
  }
}

__global__ void add_pairs_kernel(const float* x, float* y, int64_t width) {
  const int64_t row = blockIdx.y;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < width) y[row * width + i] = x[2 * row * width + i] + x[(2 * row + 1) * width + i];
}

__global__ void add_bias_kernel(const float* bias, float* y, int64_t width) {
  for (int64_t i = threadIdx.x; i < width; i += kThreads) y[blockIdx.x * width + i] += bias[i];
}

// combine over the block's threads, in the same order for each of them.
template <typename T, typename Combine>
__device__ T reduce(T x, Combine combine) {
  __shared__ T shared[kThreads / 32];
  for (int lane = 16; lane > 0; lane /= 2) x = combine(x, __shfl_xor_sync(~0U, x, lane));
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) x = combine(x, shared[warp]);
  return x;
}
__device__ float largest_of(float x) {
  return reduce(x, [](float a, float b) { return fmaxf(a, b); });
}

__global__ void __launch_bounds__(kThreads) softmax_kernel(const Softmax t) {
  const int64_t query = blockIdx.x;
  float* row = t.scores + (blockIdx.y * t.queries + query) * t.keys;
  const int64_t end = t.position + query - t.first_key + 1;
  const int64_t begin = t.window > 0 && end > t.window ? end - t.window : 0;
  float top = -FLT_MAX;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    top = fmaxf(top, row[i] * t.factor);
  }
  top = largest_of(top);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < t.keys; i += kThreads) {
    const float e = i >= begin && i < end ? expf(row[i] * t.factor - top) : 0.0F;
    row[i] = e;
    sum += e;
  }
  sum = reduce(sum, [](float a, float b) { return a + b; });
  const float inverse = 1.0F / sum;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) row[i] *= inverse;
}

__global__ void __launch_bounds__(kThreads)
    score_kernel(const float* logits, const int32_t* targets, RowScore* scores, int64_t width) {
  const float* row = logits + blockIdx.x * width;
  float top = -FLT_MAX;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) top = fmaxf(top, row[i]);
  top = largest_of(top);
  double sum = 0;
  int first = INT_MAX;  // of the largest
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    sum += expf(row[i] - top);
    if (row[i] == top) first = min(first, static_cast<int>(i));
  }
  sum = reduce(sum, [](double a, double b) { return a + b; });
  first = reduce(first, [](int a, int b) { return min(a, b); });
  if (threadIdx.x > 0) return;
  const int32_t target = targets[blockIdx.x];
  scores[blockIdx.x] = {row[target], static_cast<float>(top + log(sum)), first == target ? 1 : 0};
}

template <typename T>
Status launch_embed(const T* table, const int32_t* tokens, float factor, float* y, int64_t rows,
                    int64_t width, cudaStream_t stream) {
  if (rows == 0) return {};
  embed_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(table, tokens, factor, y,
                                                                     width);
  return check_launch("embed");
}

// Shared memory of a row of `width` floats, twice that where a factor needs it.
Result<int> row_memory(const void* kernel, int64_t width, const HadamardTask& h) {
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  const int64_t bytes = width * 4 * (h.m > 1 ? 2 : 1);
  if (bytes > device.shared_memory) {
    return error(ErrorCode::kUnsupported,
                 "rows of {} elements: their rotation takes {} bytes of shared memory, of {}",
                 width, bytes, device.shared_memory);
  }
  QUAROT_RETURN_IF_ERROR(
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes)),
            "rows"));
  return static_cast<int>(bytes);
}

}  // namespace

Status rows(const RowTask& task, cudaStream_t stream) {
  if (task.rows == 0) return {};
  const HadamardTask h = hadamard_of(task.hadamard);
  QUAROT_ASSIGN_OR_RETURN(const int bytes,
                          row_memory(reinterpret_cast<const void*>(rows_kernel), task.width, h));
  rows_kernel<<<static_cast<unsigned>(task.rows), kThreads, bytes, stream>>>(task, h);
  return check_launch("rows");
}

Status heads(const HeadsTask& task, cudaStream_t stream) {
  if (task.tokens == 0) return {};
  const HadamardTask h = hadamard_of(task.hadamard);
  QUAROT_ASSIGN_OR_RETURN(
      const int bytes, row_memory(reinterpret_cast<const void*>(heads_kernel), task.head_dim, h));
  const int threads = std::clamp(static_cast<int>(task.head_dim / 2 + 31) / 32 * 32, 32, kThreads);
  heads_kernel<<<static_cast<unsigned>(task.tokens * task.heads), threads, bytes, stream>>>(task,
                                                                                            h);
  return check_launch("heads");
}

Status simulate(const Simulation& quant, float* x, int64_t rows, int64_t width,
                cudaStream_t stream) {
  const int64_t row_groups = width / quant.group;
  const int64_t groups = rows * row_groups;
  if (groups == 0) return {};
  Simulation task = quant;
  if (task.channels == nullptr) task.stride = width;
  constexpr int kWarps = kThreads / 32;
  simulate_kernel<<<static_cast<unsigned>((groups + kWarps - 1) / kWarps), kThreads, 0, stream>>>(
      x, groups, row_groups, task);
  return check_launch("simulate");
}

Status largest_magnitudes(const float* x, float* largest, int64_t rows, int64_t width,
                          cudaStream_t stream) {
  QUAROT_RETURN_IF_ERROR(
      check(cudaMemsetAsync(largest, 0, static_cast<size_t>(width) * sizeof(float), stream),
            "largest_magnitudes"));
  if (rows == 0) return {};
  const dim3 grid(static_cast<unsigned>((width + kThreads - 1) / kThreads),
                  static_cast<unsigned>(std::min<int64_t>(rows, kRowBlocks)));
  largest_kernel<<<grid, kThreads, 0, stream>>>(x, largest, rows, width);
  return check_launch("largest_magnitudes");
}

Status round_to_half(float* x, int64_t count, cudaStream_t stream) {
  if (count == 0) return {};
  half_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      x, count);
  return check_launch("round_to_half");
}

Status embed(const float* table, const int32_t* tokens, float factor, float* y, int64_t rows,
             int64_t width, cudaStream_t stream) {
  return launch_embed(table, tokens, factor, y, rows, width, stream);
}
Status embed(const __half* table, const int32_t* tokens, float factor, float* y, int64_t rows,
             int64_t width, cudaStream_t stream) {
  return launch_embed(table, tokens, factor, y, rows, width, stream);
}

Status split_rows(const float* x, __half* y, int64_t rows, int64_t width, cudaStream_t stream) {
  if (rows == 0) return {};
  split_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(x, y, width);
  return check_launch("split_rows");
}

Status add_pairs(const float* x, float* y, int64_t rows, int64_t width, cudaStream_t stream) {
  if (rows == 0) return {};
  const dim3 grid(static_cast<unsigned>((width + kThreads - 1) / kThreads),
                  static_cast<unsigned>(rows));
  add_pairs_kernel<<<grid, kThreads, 0, stream>>>(x, y, width);
  return check_launch("add_pairs");
}

Status add_bias(const float* bias, float* y, int64_t rows, int64_t width, cudaStream_t stream) {
  if (rows == 0) return {};
  add_bias_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(bias, y, width);
  return check_launch("add_bias");
}

Status softmax(const Softmax& task, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(task.queries), static_cast<unsigned>(task.heads));
  softmax_kernel<<<grid, kThreads, 0, stream>>>(task);
  return check_launch("softmax");
}

Status score_rows(const float* logits, const int32_t* targets, RowScore* scores, int64_t rows,
                  int64_t width, cudaStream_t stream) {
  if (rows == 0) return {};
  score_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(logits, targets, scores,
                                                                     width);
  return check_launch("score_rows");
}

}  // namespace quarot::cuda
