// The parts of a row kernel: loading with the operation in front, reducing over the block, and
// quantising. One block has one row, in registers: thread i has vectors i, i + blockDim, … of eight
// consecutive elements. At 4 TB/s an SM has some 17 instructions an element to spend on bf16 in and
// int4 out; what follows counts them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/fused/fused.h"
#include "kernels/cuda/fused/half_mma.cuh"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda {

inline constexpr int kMaxRowThreads = 512;
inline constexpr int kVector = 8;

// Eight elements as they lie in memory.
template <typename In>
struct RawVector;
template <>
struct RawVector<float> {
  float4 v[2];

  __device__ void load(const float* p) {
    v[0] = reinterpret_cast<const float4*>(p)[0];
    v[1] = reinterpret_cast<const float4*>(p)[1];
  }
  __device__ void store(float* p) const {
    reinterpret_cast<float4*>(p)[0] = v[0];
    reinterpret_cast<float4*>(p)[1] = v[1];
  }
  __device__ void expand(float (&x)[kVector]) const {
    x[0] = v[0].x, x[1] = v[0].y, x[2] = v[0].z, x[3] = v[0].w;
    x[4] = v[1].x, x[5] = v[1].y, x[6] = v[1].z, x[7] = v[1].w;
  }
};
template <>
struct RawVector<__nv_bfloat16> {
  uint4 v;

  __device__ void load(const __nv_bfloat16* p) { v = *reinterpret_cast<const uint4*>(p); }
  __device__ void expand(float (&x)[kVector]) const {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
    }
  }
};

__device__ __forceinline__ float silu(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0F + exp2_approx(-1.44269504F * x)));
  return x * inverse;
}

// To the same bits wherever it is done: nothing is left to contract with what follows.
__device__ __forceinline__ float swiglu(float gate, float up) { return __fmul_rn(silu(gate), up); }

__device__ __forceinline__ int element_of(int vector) {
  return (vector * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kVector;
}

__device__ __forceinline__ float sum_of_squares(const float (&x)[kVector]) {
  float sum = 0;
#pragma unroll
  for (const float e : x) sum = __fmaf_rn(e, e, sum);
  return sum;
}
__device__ __forceinline__ void apply_gain(const float* from, float (&x)[kVector]) {
  RawVector<float> raw;
  raw.load(from);
  float gain[kVector];
  raw.expand(gain);
#pragma unroll
  for (int e = 0; e < kVector; ++e) x[e] *= gain[e];
}

// kCount of a thread's vectors, from number `base` on, as they lie in memory: loading is apart from
// use, so that all loads are under way before the first is waited for.
template <typename In, int kCount>
struct RawRow {
  RawVector<In> x[kCount];
  RawVector<In> second[kCount];

  __device__ void load(const Rows& args, int row, int base) {
    const In* from = static_cast<const In*>(args.x) + row * args.stride;
    const In* also = static_cast<const In*>(args.second) + row * args.stride;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] = second[i] = {};
      const int at = element_of(base + i);
      if (at >= args.n) continue;
      x[i].load(from + at);
      if (args.operation == RowOperation::kSwiglu) second[i].load(also + at);
    }
  }
  // The elements with the operation applied, but for the norm's factor; zeros past the row's end.
  // squares[v]: the sum of those of vector v, where they are normed.
  // kGates: whether the operation may be SwiGLU.
  template <bool kGates = true>
  __device__ void expand(const Rows& args, int base, float (*out)[kVector], float* squares) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float(&e)[kVector] = out[i];
      x[i].expand(e);
      const int at = element_of(base + i);
      if (kGates && args.operation == RowOperation::kSwiglu) {
        float other[kVector];
        second[i].expand(other);
#pragma unroll
        for (int j = 0; j < kVector; ++j) e[j] = swiglu(e[j], other[j]);
      }
      if (args.operation == RowOperation::kNorm && at < args.n) {
        squares[at / kVector] = sum_of_squares(e);
      }
      if (args.gain != nullptr && at < args.n) apply_gain(args.gain + at, e);
    }
  }
};

__device__ __forceinline__ void apply_four_signs(const int8_t* signs, float* x) {
  const auto four = *reinterpret_cast<const uint32_t*>(signs);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    x[e] = __uint_as_float(__float_as_uint(x[e]) ^ (four << (24 - 8 * e) & 0x80000000U));
  }
}
__device__ __forceinline__ void apply_signs(const int8_t* signs, int at, float (&x)[kVector]) {
  apply_four_signs(signs + at, x);
  apply_four_signs(signs + at + 4, x + 4);
}

// Of a row's input, which nobody reads again.
__device__ __forceinline__ void load_four_once(const float* p, float* x) {
  const uint4 v = load_once_16(p);
  x[0] = __uint_as_float(v.x), x[1] = __uint_as_float(v.y);
  x[2] = __uint_as_float(v.z), x[3] = __uint_as_float(v.w);
}
__device__ __forceinline__ void load_four_once(const __nv_bfloat16* p, float* x) {
  const uint2 v = load_once_8(p);
  x[0] = __uint_as_float(v.x << 16), x[1] = __uint_as_float(v.x & 0xffff0000U);
  x[2] = __uint_as_float(v.y << 16), x[3] = __uint_as_float(v.y & 0xffff0000U);
}

// Where the row of a row kernel comes from: as it lies in memory.
struct StoredRow {
  static constexpr bool kAtOnce = false;  // whether all its vectors are loaded before the first use
  static constexpr bool kShared = false;  // whether it lies in shared memory, at `from`
  // Whether its rows may take this operation.
  static constexpr bool has(RowOperation /*operation*/) { return true; }
  int row;

  template <typename In, int kCount>
  __device__ void load(const Rows& args, int base, RawRow<In, kCount>& raw) const {
    raw.load(args, row, base);
  }
  // Fours of elements, the first from `at` on, `distance` apart.
  template <typename In, int kElements>
  __device__ void load_fours(const Rows& args, int at, int distance, float (&x)[kElements]) const {
    load_fours<In>(args, args.x, at, distance, x);
  }
  template <typename In, int kElements>
  __device__ void load_second_fours(const Rows& args, int at, int distance,
                                    float (&x)[kElements]) const {
    load_fours<In>(args, args.second, at, distance, x);
  }
  // Float32 elements, the first `at`, `distance` apart.
  template <int kElements>
  __device__ void load_apart(const Rows& args, int at, int distance, float (&x)[kElements]) const {
    load_apart(args, args.x, at, distance, x);
  }
  template <int kElements>
  __device__ void load_second_apart(const Rows& args, int at, int distance,
                                    float (&x)[kElements]) const {
    load_apart(args, args.second, at, distance, x);
  }

 private:
  template <int kElements>
  __device__ void load_apart(const Rows& args, const void* matrix, int at, int distance,
                             float (&x)[kElements]) const {
    const float* from = static_cast<const float*>(matrix) + row * args.stride + at;
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] = load_once_4(from + i * distance);
  }
  template <typename In, int kElements>
  __device__ void load_fours(const Rows& args, const void* matrix, int at, int distance,
                             float (&x)[kElements]) const {
    const In* from = static_cast<const In*>(matrix) + row * args.stride + at;
#pragma unroll
    for (int j = 0; j < kElements / 4; ++j) load_four_once(from + j * distance, x + 4 * j);
  }
};

template <int kCount>
__device__ __forceinline__ float largest(const float (&x)[kCount]) {
  float top = 0;
#pragma unroll
  for (const float e : x) top = fmaxf(top, fabsf(e));
  return top;
}

// Over the block, for every thread, of what is not negative. Each call of a kernel has its own
// slots, so that one barrier is enough.
template <int kWarps>
__device__ __forceinline__ float largest_of_block(float (&slots)[kWarps], float top) {
  top = __uint_as_float(__reduce_max_sync(~0U, __float_as_uint(top)));
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = top;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  const float other = lane < blockDim.x / 32 ? slots[lane] : 0;
  return __uint_as_float(__reduce_max_sync(~0U, __float_as_uint(other)));
}

// What a norm multiplies by, of the sum of the row's squares.
__device__ __forceinline__ float norm_of(float squares, int n, float eps) {
  return rsqrtf(__fadd_rn(__fdividef(squares, static_cast<float>(n)), eps));
}

// By each warp for itself, from the squares of the row's vectors: the same order, and so the same
// bits, however many threads the block has.
__device__ __forceinline__ float norm_factor(const Rows& args, const float* squares) {
  if (args.operation != RowOperation::kNorm) return 1;
  float sum = 0;
#pragma unroll 4
  for (int v = threadIdx.x % 32; v < args.n / kVector; v += 32) sum += squares[v];
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0U, sum, lane);
  return norm_of(sum, args.n, args.eps);
}

// a / n, correctly rounded, for an integer n below 2²³ (Markstein 1990: with the correctly rounded
// reciprocal, one correction of the quotient is enough).
struct SmallDivisor {
  float n;
  float reciprocal;

  __device__ explicit SmallDivisor(int integer) : n(static_cast<float>(integer)) {
    reciprocal = __frcp_rn(n);
  }
  __device__ float divide(float a) const {
    const float quotient = __fmul_rn(a, reciprocal);
    return __fmaf_rn(__fmaf_rn(-quotient, n, a), reciprocal, quotient);
  }
};

// The low bytes of four words.
__device__ __forceinline__ uint32_t pack_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}
// Eight int4: the low nibbles of `low`'s bytes and, above each, those of `high`'s.
__device__ __forceinline__ uint32_t pack_nibbles(uint32_t low, uint32_t high) {
  return (low & 0x0f0f0f0fU) | (high << 4 & 0xf0f0f0f0U);
}

// q = clamp(round-half-even(y / scale)), y = x · factor. The product with the reciprocal, once a
// little high and once a little low, gives the same integer twice unless y / scale is within its
// error of a tie; then the division decides. Adding 1.5 · 2²³ rounds to an integer and leaves it in
// the float's low bits.
class RowQuantizer {
 public:
  // `top` is the largest |x| of the row.
  __device__ RowQuantizer(const RowQuant& quant, float factor, float top) : factor_(factor) {
    constexpr float kSpread = 0x1p-20F;
    const SmallDivisor highest((1 << (quant.bits - 1)) - 1);
    const float y = __fmul_rn(top, factor);
    scale_ = y > 0 ? highest.divide(__fmul_rn(quant.clip, y)) : 1.0F;
    inverse_ = __fdividef(factor, scale_);
    high_ = inverse_ * (1 + kSpread);
    low_ = inverse_ * (1 - kSpread);
    highest_ = kRound + highest.n;
    lowest_ = kRound - highest.n - 1;
  }
  __device__ float scale() const { return scale_; }

  // kCount codes, the low bytes of `codes`.
  template <int kCount>
  __device__ void quantize(const float (&x)[kCount], uint32_t (&codes)[kCount]) const {
    uint32_t differ = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float q = __fmaf_rn(x[i], high_, kRound);
      differ |= __float_as_uint(q) ^ __float_as_uint(__fmaf_rn(x[i], low_, kRound));
      codes[i] = clamp(q);
    }
    if (differ == 0) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      codes[i] = clamp(round_quotient(__fmul_rn(x[i], factor_), scale_) + kRound);
    }
  }
  // Four codes, a byte each, of what carries round-off already: a tie may fall to either side.
  // They are clamped as int16, which has room for clips down to 1/256.
  __device__ uint32_t quantize_rounded(float a, float b, float c, float d) const {
    const uint32_t low = clamp_pair(rounded(a), rounded(b));
    return __byte_perm(low, clamp_pair(rounded(c), rounded(d)), 0x6420);
  }

 private:
  static constexpr float kRound = 12582912.0F;

  // Out of line: rare, and a division's registers would be the whole kernel's.
  __device__ static __noinline__ float round_quotient(float y, float scale) {
    return rintf(__fdiv_rn(y, scale));
  }
  __device__ uint32_t clamp(float q) const {
    return __float_as_uint(fminf(fmaxf(q, lowest_), highest_));
  }
  __device__ uint32_t rounded(float x) const {
    return __float_as_uint(__fmaf_rn(x, inverse_, kRound));
  }
  // Of the low halves.
  __device__ uint32_t clamp_pair(uint32_t a, uint32_t b) const {
    const uint32_t highest = __byte_perm(__float_as_uint(highest_), 0, 0x1010);
    const uint32_t lowest = __byte_perm(__float_as_uint(lowest_), 0, 0x1010);
    return __vmins2(__vmaxs2(__byte_perm(a, b, 0x5410), lowest), highest);
  }

  float factor_;
  float scale_;
  float inverse_;
  float highest_;
  float lowest_;
  float high_;
  float low_;
};

__device__ __forceinline__ uint8_t* output_row(const Rows& args, int row) {
  return static_cast<uint8_t*>(args.quant.values) +
         static_cast<size_t>(row) * args.n / (args.quant.pack_int4 ? 2 : 1);
}

}  // namespace quarot::cuda
