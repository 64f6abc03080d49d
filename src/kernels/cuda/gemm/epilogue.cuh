// From int32 sums to outputs, stated once for every path: gemm.h's arithmetic, step by step.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/fused/row_pass.cuh"

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
        float x = value(sums[i], scale, i);
        if (epilogue_.residual != nullptr) x = __fadd_rn(x, to_float(residual.element[i]));
        y.element[i] = from_float<Out>(x);
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

  // What sum i of a token becomes, but for the residual; `scale` is the token's.
  __device__ __forceinline__ float value(int32_t sum, float scale, int i) const {
    const float y = scaled(sum, scale, scale_[i]);
    return epilogue_.bias != nullptr ? __fadd_rn(y, bias_[i]) : y;
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
  const Epilogue& epilogue_;
  int column_;
  float scale_[kWidth];
  float bias_[kWidth];
};

// Four adjacent channels of silu(gate) · up, from `column` on.
class GatedColumns {
 public:
  __device__ __forceinline__ GatedColumns(const Epilogue& epilogue, int column)
      : epilogue_(epilogue),
        column_(column),
        gate_(epilogue, column),
        up_(epilogue, epilogue.n / 2 + column) {}

  __device__ __forceinline__ void store(int token, const int4& gates, const int4& ups) const {
    if (token >= epilogue_.m) return;
    const float scale = epilogue_.activation_scales[token];
    float* output = static_cast<float*>(epilogue_.output) +
                    static_cast<int64_t>(token) * (epilogue_.n / 2) + column_;
    *reinterpret_cast<float4*>(output) = {
        gated(gates.x, ups.x, scale, 0), gated(gates.y, ups.y, scale, 1),
        gated(gates.z, ups.z, scale, 2), gated(gates.w, ups.w, scale, 3)};
  }

 private:
  __device__ __forceinline__ float gated(int32_t gate, int32_t up, float scale, int i) const {
    return swiglu(gate_.value(gate, scale, i), up_.value(up, scale, i));
  }

  const Epilogue& epilogue_;
  int column_;
  Columns<float, 4> gate_;
  Columns<float, 4> up_;
};

}  // namespace quarot::cuda
