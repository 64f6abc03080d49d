// From int32 sums to outputs, stated once for every path: gemm.h's arithmetic, step by step.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace quarot::cuda {

struct Epilogue {
  const float* activation_scales;
  const float* weight_scales;
  const float* bias;
  const void* residual;
  void* output;
  int m;
  int n;
};

template <typename Out>
__device__ __forceinline__ Out from_float(float x) {
  if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else if constexpr (std::is_same_v<Out, __half>) {
    return __float2half_rn(x);
  } else {
    return x;
  }
}
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

// gemm.h's y, one rounding after the other, without the bias and the residual.
__device__ __forceinline__ float scaled(int32_t sum, float activation_scale, float weight_scale) {
  return __fmul_rn(__fmul_rn(__int2float_rn(sum), activation_scale), weight_scale);
}

// kWidth adjacent output channels from `column` on, what one thread writes of a token.
template <typename Out, int kWidth>
class Columns {
 public:
  __device__ __forceinline__ Columns(const Epilogue& epilogue, int column)
      : epilogue_(epilogue), column_(column) {
    if constexpr (!kRaw) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const bool valid = column + i < epilogue.n;
        scale_[i] = valid ? epilogue.weight_scales[column + i] : 0.0F;
        bias_[i] = valid && epilogue.bias != nullptr ? epilogue.bias[column + i] : 0.0F;
      }
    }
  }

  __device__ __forceinline__ void store(int token, const int32_t (&sums)[kWidth]) const {
    if (token >= epilogue_.m || column_ >= epilogue_.n) return;
    const int64_t offset = static_cast<int64_t>(token) * epilogue_.n + column_;
    Out* output = static_cast<Out*>(epilogue_.output) + offset;
    const bool whole = epilogue_.n % kWidth == 0;
    Vector y;
    if constexpr (kRaw) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) y.element[i] = sums[i];
    } else {
      const float scale = epilogue_.activation_scales[token];
      Vector residual{};
      if (epilogue_.residual != nullptr) {
        load(static_cast<const Out*>(epilogue_.residual) + offset, whole, residual);
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        y.element[i] = from_float<Out>(value(sums[i], scale, i, residual.element[i]));
      }
    }
    if (whole) {
      *reinterpret_cast<Vector*>(output) = y;
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (column_ + i < epilogue_.n) output[i] = y.element[i];
      }
    }
  }

 private:
  static constexpr bool kRaw = std::is_same_v<Out, int32_t>;
  struct alignas(kWidth * sizeof(Out)) Vector {
    Out element[kWidth];
  };

  __device__ __forceinline__ void load(const Out* from, bool whole, Vector& to) const {
    if (whole) {
      to = *reinterpret_cast<const Vector*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (column_ + i < epilogue_.n) to.element[i] = from[i];
      }
    }
  }
  __device__ __forceinline__ float value(int32_t sum, float scale, int i, Out residual) const {
    float y = scaled(sum, scale, scale_[i]);
    if (epilogue_.bias != nullptr) y = __fadd_rn(y, bias_[i]);
    if (epilogue_.residual != nullptr) y = __fadd_rn(y, to_float(residual));
    return y;
  }

  const Epilogue& epilogue_;
  int column_;
  float scale_[kWidth];
  float bias_[kWidth];
};

}  // namespace quarot::cuda
