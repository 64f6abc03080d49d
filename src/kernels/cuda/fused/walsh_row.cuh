// Rows whose operator is a Walsh transform alone, over index bits `first` to log2 − 1 of rows of
// 2^log2: butterflies, in float32. A thread has 32 elements, eight vectors of four neighbours, at
// any time; the eight differ in the three index bits that are transformed next, and shared memory
// is where they change places. The order of the additions does not depend on who does them, nor how
// many rows there are.
#pragma once

#include "kernels/cuda/fused/butterflies.cuh"
#include "kernels/cuda/fused/row_pass.cuh"

namespace quarot::cuda {

inline constexpr int kWalshVectors = 8;
inline constexpr int kWalshElements = 4 * kWalshVectors;

// Known to the compiler, for kernels of many rows, or not, where the row is but a part of the work.
template <int kLog2, int kFirst>
struct FixedWalsh {
  __device__ static constexpr int log2() { return kLog2; }
  __device__ static constexpr int first() { return kFirst; }
};
struct AnyWalsh {
  int log2_;
  int first_;
  __device__ explicit AnyWalsh(const RowRotation& rotation)
      : log2_(rotation.log2), first_(rotation.first) {}
  __device__ int log2() const { return log2_; }
  __device__ int first() const { return first_; }
};

__host__ __device__ constexpr int walsh_threads(int log2) { return (1 << log2) / kWalshElements; }

// Where element `at` lies in shared memory, in floats: a vector is left free after each 128 bytes,
// so that neither vectors 128 bytes apart nor neighbouring ones meet in a bank.
__host__ __device__ constexpr int walsh_place(int at) { return at + at / 32 * 4; }
__host__ __device__ constexpr int walsh_bytes(int log2) {
  return walsh_place(1 << log2) * static_cast<int>(sizeof(float));
}

// The first element of thread t while its vectors differ in index bits `bit` to `bit` + 2.
__device__ __forceinline__ int walsh_base(int t, int bit) {
  const int low = t & ((1 << (bit - 2)) - 1);
  return low << 2 | t >> (bit - 2) << (bit + 3);
}

using WalshVectors = float[kWalshElements];

__device__ __forceinline__ void keep_vectors(float* shared, int base, int bit,
                                             const WalshVectors& x) {
  float* to = shared + walsh_place(base);
#pragma unroll
  for (int j = 0; j < kWalshVectors; ++j) {
    *reinterpret_cast<float4*>(to + walsh_place(j << bit)) = {x[4 * j], x[4 * j + 1], x[4 * j + 2],
                                                              x[4 * j + 3]};
  }
}
__device__ __forceinline__ void take_vectors(const float* shared, int base, int bit,
                                             WalshVectors& x) {
  const float* from = shared + walsh_place(base);
#pragma unroll
  for (int j = 0; j < kWalshVectors; ++j) {
    const auto v = *reinterpret_cast<const float4*>(from + walsh_place(j << bit));
    x[4 * j] = v.x, x[4 * j + 1] = v.y, x[4 * j + 2] = v.z, x[4 * j + 3] = v.w;
  }
}

// Four elements as they lie in memory.
__device__ __forceinline__ void load_four(const float* p, float* x) {
  const auto v = *reinterpret_cast<const float4*>(p);
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

// The elements with the operation applied, but for the norm's factor; returns the sum of this
// thread's squares, where they are normed. Nothing here is left for the compiler to contract with
// what follows.
template <typename In, RowOperation kOperation, typename Source>
__device__ __forceinline__ float load_vectors(const Rows& args, const Source& source, int base,
                                              int bit, WalshVectors& x) {
  source.template load_fours<In>(args, base, 1 << bit, x);
  float squares = 0;
  if constexpr (kOperation == RowOperation::kSwiglu) {
    WalshVectors second;
    source.template load_second_fours<In>(args, base, 1 << bit, second);
#pragma unroll
    for (int i = 0; i < kWalshElements; ++i) x[i] = swiglu(x[i], second[i]);
  }
  if constexpr (kOperation == RowOperation::kNorm) {
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < kWalshElements; ++i) sums[i % 4] = __fmaf_rn(x[i], x[i], sums[i % 4]);
    squares = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
    if (args.gain != nullptr) {
#pragma unroll
      for (int j = 0; j < kWalshVectors; ++j) {
        float gain[4];
        load_four(args.gain + base + (j << bit), gain);
#pragma unroll
        for (int e = 0; e < 4; ++e) x[4 * j + e] = __fmul_rn(x[4 * j + e], gain[e]);
      }
    }
  }
  if (args.rotation.signs != nullptr) {
#pragma unroll
    for (int j = 0; j < kWalshVectors; ++j) {
      apply_four_signs(args.rotation.signs + base + (j << bit), x + 4 * j);
    }
  }
  return squares;
}

// int8 codes where they belong, four a word; or, packed, of the two words that hold a byte's
// nibbles (in lanes 4 apart) each lane makes one.
__device__ __forceinline__ void store_vectors(const RowQuant& quant, int base, int bit,
                                              const uint32_t (&words)[kWalshVectors],
                                              uint8_t* out) {
  if (!quant.pack_int4) {
#pragma unroll
    for (int j = 0; j < kWalshVectors; ++j) {
      *reinterpret_cast<uint32_t*>(out + base + (j << bit)) = words[j];
    }
    return;
  }
  const bool upper = (base & 16) != 0;
  uint8_t* to = out + base / 32 * 16 + base % 16;
#pragma unroll
  for (int j = 0; j < kWalshVectors; j += 2) {
    const uint32_t own = upper ? words[j + 1] : words[j];
    const uint32_t other = __shfl_xor_sync(~0U, upper ? words[j] : words[j + 1], 4);
    const int at = (upper ? j + 1 : j) << bit;
    *reinterpret_cast<uint32_t*>(to + at / 2) =
        upper ? pack_nibbles(other, own) : pack_nibbles(own, other);
  }
}

// A row, as args says, turned and quantised into `out`, by walsh_threads(log2) neighbouring threads
// of a block: whole warps, which meet at the named barrier. `shared` has walsh_bytes(log2). Returns
// the scale.
template <typename In, RowOperation kOperation, typename Source, typename Walsh>
__device__ __forceinline__ float walsh_row(const Rows& args, const Source& source,
                                           const Walsh& walsh, int barrier, float* shared,
                                           uint8_t* out) {
  __shared__ float squares[kMaxRowThreads / 32];
  __shared__ float tops[kMaxRowThreads / 32];
  const int threads = walsh_threads(walsh.log2());
  const int t = static_cast<int>(threadIdx.x) % threads;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_warp = (static_cast<int>(threadIdx.x) - t) / 32;
  const int warps = threads / 32;
  const bool whole = walsh.first() == 0;
  const int high = walsh.log2() - 3;

  WalshVectors x;
  int base = walsh_base(t, high);
  float sum = load_vectors<In, kOperation>(args, source, base, high, x);
  if constexpr (kOperation == RowOperation::kNorm) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0U, sum, lane);
    if (threadIdx.x % 32 == 0) squares[warp] = sum;
  }
  if (whole) {
    butterflies<1>(x);
    butterflies<2>(x);
  }
  butterflies<4>(x);
  butterflies<8>(x);
  butterflies<16>(x);
  keep_vectors(shared, base, high, x);
  barrier_sync(barrier, threads);
  if (whole) {
    base = walsh_base(t, 2);
    take_vectors(shared, base, 2, x);
    butterflies<4>(x);
    butterflies<8>(x);
    butterflies<16>(x);
    keep_vectors(shared, base, 2, x);
    __syncwarp();  // what comes next lies in the same warp: it has the same highest bits
  }
  const int middle = whole ? 5 : high - 3;
  base = walsh_base(t, middle);
  take_vectors(shared, base, middle, x);
  const auto has = [&](int bit) { return bit >= walsh.first() && bit < high; };
  if (has(middle)) butterflies<4>(x);
  if (has(middle + 1)) butterflies<8>(x);
  if (has(middle + 2)) butterflies<16>(x);
  if (whole) {
    for (int bit = middle + 3; bit < high; ++bit) lane_butterflies(x, 1U << (bit - 5));
  }

  float top = __uint_as_float(__reduce_max_sync(~0U, __float_as_uint(largest(x))));
  if (threadIdx.x % 32 == 0) tops[warp] = top;
  barrier_sync(barrier, threads);
  top = 0;
  sum = 0;
  for (int i = 0; i < warps; ++i) {
    top = fmaxf(top, tops[first_warp + i]);
    if constexpr (kOperation == RowOperation::kNorm) sum += squares[first_warp + i];
  }
  float factor = args.rotation.scale;
  if constexpr (kOperation == RowOperation::kNorm) factor *= norm_of(sum, args.n, args.eps);
  const RowQuantizer quantizer(args.quant, factor, top);
  uint32_t words[kWalshVectors];
#pragma unroll
  for (int j = 0; j < kWalshVectors; ++j) {
    words[j] = quantizer.quantize_rounded(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
  }
  store_vectors(args.quant, base, middle, words, out);
  return quantizer.scale();
}

}  // namespace quarot::cuda
