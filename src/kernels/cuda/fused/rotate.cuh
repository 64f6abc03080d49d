// Row kernels: without a rotation, and with one.
//
// A rotation is float32 additions where all of it is (walsh_row.cuh, column_row.cuh). Elsewhere it
// is a Walsh transform of up to 256 consecutive elements, by such additions, and then a dense
// factor across [m][columns], on tensor cores (factor_mma.cuh). A power of two, from the row's
// maximum, keeps both of its terms in float16's range.
#pragma once

#include <algorithm>

#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fused/factor_mma.cuh"
#include "kernels/cuda/fused/rotate_columns.cuh"
#include "kernels/cuda/fused/row_pass.cuh"
#include "kernels/cuda/fused/walsh_row.cuh"

namespace quarot::cuda {

// The rotation's factor into L2, before begin_early, by a block of kMaxRowThreads.
__device__ __forceinline__ void prefetch_rotation(const RowRotation& rotation) {
  prefetch_bytes<kMaxRowThreads>(rotation.factor, factor_bytes(rotation));
}
// What the squares of a row's vectors take, where it is normed.
__host__ __device__ constexpr int square_bytes(const Rows& rows) {
  return rows.operation == RowOperation::kNorm ? (rows.n / kVector + 3) / 4 * 16 : 0;
}

template <typename In, int kVectors, typename Source>
__device__ __forceinline__ void load_row(const Rows& args, const Source& source,
                                         float (&x)[kVectors][kVector], float* squares) {
  // How many are under way, by registers.
  constexpr int kBatch = kVectors <= 2 || Source::kAtOnce ? kVectors
                         : sizeof(In) == 4                ? 1
                         : kVectors % 4 == 0              ? kVectors / 2
                                                          : kVectors;
  static_assert(kVectors % kBatch == 0);
#pragma unroll
  for (int base = 0; base < kVectors; base += kBatch) {
    RawRow<In, kBatch> raw;
    source.load(args, base, raw);
    raw.template expand<Source::has(RowOperation::kSwiglu)>(args, base, x + base, squares);
  }
}

// A row's elements, by the threads' vectors, quantised into `out`. Returns the scale.
template <int kVectors>
__device__ __forceinline__ float quantize_vectors(const Rows& args,
                                                  const float (&x)[kVectors][kVector],
                                                  const float* squares, uint8_t* out) {
  __shared__ float slots[kMaxRowThreads / 32];
  float top = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) top = fmaxf(top, largest(x[i]));
  top = largest_of_block(slots, top);
  const RowQuantizer quantizer(args.quant, norm_factor(args, squares), top);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = element_of(i);
    uint32_t codes[kVector];
    quantizer.quantize(x[i], codes);
    const uint32_t first = pack_bytes(codes[0], codes[1], codes[2], codes[3]);
    const uint32_t last = pack_bytes(codes[4], codes[5], codes[6], codes[7]);
    if (!args.quant.pack_int4) {
      if (at < args.n) *reinterpret_cast<uint2*>(out + at) = {first, last};
      continue;
    }
    // Of 32 elements lanes 0, 1 have the low nibbles and 2, 3 the high: each of a pair packs half.
    const bool upper = (threadIdx.x & 2) != 0;
    const uint32_t other = __shfl_xor_sync(~0U, upper ? first : last, 2);
    const uint32_t packed = upper ? pack_nibbles(other, last) : pack_nibbles(first, other);
    if (at < args.n) {
      *reinterpret_cast<uint32_t*>(out + at / 32 * 16 + (threadIdx.x & 1) * 8 + (upper ? 4 : 0)) =
          packed;
    }
  }
  return quantizer.scale();
}

// A row, as args says, quantised into `out`; `squares` has room for a float a vector. Returns the
// scale.
template <typename In, int kVectors, typename Source>
__device__ __forceinline__ float quantize_row(const Rows& args, const Source& source,
                                              float* squares, uint8_t* out) {
  float x[kVectors][kVector];
  load_row<In>(args, source, x, squares);
  return quantize_vectors(args, x, squares, out);
}

// Which row of [m][columns] element `at` is in: at / columns.
__device__ __forceinline__ int matrix_row(const RowRotation& rotation, int at) {
  return static_cast<int>(__umulhi(at, rotation.inverse_columns));
}

// Writes a row of int8 codes that lie in shared memory, rows of [m][columns] kPadding bytes apart,
// as the row of the output.
__device__ __forceinline__ void store_codes(const Rows& args, const uint8_t* codes, uint8_t* out) {
  const auto piece = [&](int at) {
    return *reinterpret_cast<const uint4*>(codes + at + matrix_row(args.rotation, at) * kPadding);
  };
  if (!args.quant.pack_int4) {
    for (int at = 16 * threadIdx.x; at < args.n; at += 16 * blockDim.x) {
      *reinterpret_cast<uint4*>(out + at) = piece(at);
    }
    return;
  }
  for (int at = 32 * threadIdx.x; at < args.n; at += 32 * blockDim.x) {
    const uint4 low = piece(at);
    const uint4 high = piece(at + 16);
    *reinterpret_cast<uint4*>(out + at / 2) = {
        pack_nibbles(low.x, high.x), pack_nibbles(low.y, high.y), pack_nibbles(low.z, high.z),
        pack_nibbles(low.w, high.w)};
  }
}

// Walsh over the low `bits` of the index bits of 256 elements, eight neighbours a lane. The order
// of the bits, 0, 1, 5, 6, 7, 2, 3, 4, is the one that suits factor_rows.cu.
__device__ __forceinline__ void walsh_256(int bits, float (&x)[kVector]) {
  if (bits > 0) butterflies<1>(x);
  if (bits > 1) butterflies<2>(x);
  for (int bit = 5; bit < bits; ++bit) lane_butterflies(x, 1U << (bit - 3));
  if (bits > 2) butterflies<4>(x);
  if (bits > 3) lane_butterflies(x, 1);
  if (bits > 4) lane_butterflies(x, 2);
}

// The row up to where the factor comes, in the planes. Returns the power of two it was scaled by.
// kExact: the elements are bf16 as loaded, with nothing multiplied in.
template <typename In, bool kExact, int kVectors, typename Source>
__device__ __forceinline__ float fill_planes(const Rows& args, const Source& source,
                                             uint8_t* shared, float* squares) {
  __shared__ float slots[kMaxRowThreads / 32];
  const RowRotation& rotation = args.rotation;
  float x[kVectors][kVector];
  load_row<In>(args, source, x, squares);
  float top = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (rotation.signs != nullptr && element_of(i) < args.n) {
      apply_signs(rotation.signs, element_of(i), x[i]);
    }
    walsh_256(rotation.walsh_bits, x[i]);
    top = fmaxf(top, largest(x[i]));
  }
  const float range = range_scale(largest_of_block(slots, top));
  const auto store = [&](auto planes) {
    planes.clear_padding(rotation.m);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (float& e : x[i]) e *= range;
      const int at = element_of(i);
      if (at < args.n) planes.store(at, matrix_row(rotation, at), x[i]);
    }
  };
  if (kExact && rotation.walsh_bits == 0) {
    store(Planes<true>(shared, rotation));
  } else {
    store(Planes<false>(shared, rotation));
  }
  __syncthreads();
  return range;
}

// What the factor's products with those planes are of the result, but for the norm.
__device__ __forceinline__ float plane_unit(const RowRotation& rotation, float range) {
  return rotation.scale * inverse_range(range);
}

// The factor's products quantised into `out`, by way of `shared`, whose planes nobody reads any
// more. `top` is the largest magnitude of the row, `factor` what one of them is. Returns the scale.
template <int kTilesM, int kTilesN>
__device__ __forceinline__ float quantize_tiles(const Rows& args,
                                                const WarpTiles<kTilesM, kTilesN>& tiles,
                                                const float (&y)[kTilesM][kTilesN][2][4], float top,
                                                float factor, uint8_t* shared, uint8_t* out) {
  const RowQuantizer quantizer(args.quant, factor, top);
  const int pitch = code_pitch(args.rotation.columns);
  if (tiles.first_m < tiles.tiles_m) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kTilesM * kTilesN * 2; ++i) {  // halves of tiles, 8 columns each
      const int m = tiles.m(i / 2 / kTilesN) * 16 + lane / 4;
      const int n = tiles.n(i / 2 % kTilesN) * 16 + i % 2 * 8 + lane % 4 * 2;
      const float(&e)[4] = y[i / 2 / kTilesN][i / 2 % kTilesN][i % 2];
      const uint32_t codes = quantizer.quantize_rounded(e[0], e[1], e[2], e[3]);
      uint8_t* to = shared + m * pitch + n;
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(codes);
      *reinterpret_cast<uint16_t*>(to + 8 * pitch) = static_cast<uint16_t>(codes >> 16);
    }
  }
  __syncthreads();
  store_codes(args, shared, out);
  return quantizer.scale();
}

// rotate_row where all is a Walsh transform, by as many of the block's threads as that takes.
template <typename In, typename Source>
__device__ __forceinline__ float rotate_walsh_row(const Rows& args, const Source& source,
                                                  uint8_t* shared, uint8_t* out) {
  constexpr int kBarrier = 1;
  const AnyWalsh walsh(args.rotation);
  auto* floats = reinterpret_cast<float*>(shared);
  if (static_cast<int>(threadIdx.x) >= walsh_threads(walsh.log2())) return 0;
  if constexpr (Source::has(RowOperation::kNorm)) {
    if (args.operation == RowOperation::kNorm) {
      return walsh_row<In, RowOperation::kNorm>(args, source, walsh, kBarrier, floats, out);
    }
  }
  if constexpr (Source::has(RowOperation::kSwiglu)) {
    if (args.operation == RowOperation::kSwiglu) {
      return walsh_row<In, RowOperation::kSwiglu>(args, source, walsh, kBarrier, floats, out);
    }
  }
  return walsh_row<In, RowOperation::kPlain>(args, source, walsh, kBarrier, floats, out);
}

// As quantize_row, with a rotation that has a factor; `shared` has room for the planes.
template <typename In, bool kExact, int kTilesM, int kTilesN, typename Source>
__device__ __forceinline__ float rotate_by_factor(const Rows& args, const Source& source,
                                                  uint8_t* shared, float* squares, uint8_t* out) {
  constexpr int kVectors = kTilesM * kTilesN;
  __shared__ float slots[kMaxRowThreads / 32];
  const RowRotation& rotation = args.rotation;
  const float range = fill_planes<In, kExact, kVectors>(args, source, shared, squares);
  const WarpTiles<kTilesM, kTilesN> tiles(rotation, threadIdx.x / 32);
  const bool busy = tiles.first_m < tiles.tiles_m;
  float y[kTilesM][kTilesN][2][4] = {};
  if (busy) {
    if (kExact && rotation.walsh_bits == 0) {
      tiles.multiply(rotation, Planes<true>(shared, rotation), y);
    } else {
      tiles.multiply(rotation, Planes<false>(shared, rotation), y);
    }
  }

  return quantize_tiles(args, tiles, y, largest_of_block(slots, largest_of(y)),
                        norm_factor(args, squares) * plane_unit(rotation, range), shared, out);
}

// With any rotation. The scale returned is thread 0's.
template <typename In, bool kExact, int kTilesM, int kTilesN, typename Source>
__device__ __forceinline__ float rotate_row(const Rows& args, const Source& source, uint8_t* shared,
                                            float* squares, uint8_t* out) {
  if (args.rotation.log2 > 0) return rotate_walsh_row<In>(args, source, shared, out);
  if (suits_columns(args)) return rotate_columns(args, source, shared, out);
  return rotate_by_factor<In, kExact, kTilesM, kTilesN>(args, source, shared, squares, out);
}

// As load_row, in a kernel for one operation: all loads of a batch are under way before the first
// is waited for, and none is in a branch; so past the row's end comes its last vector once more.
template <typename In, RowOperation kOperation, int kVectors>
__device__ __forceinline__ void load_whole_row(const Rows& args, int row,
                                               float (&x)[kVectors][kVector], float* squares) {
  constexpr bool kSwiglu = kOperation == RowOperation::kSwiglu;
  constexpr int kBatch = std::min(kVectors, kSwiglu ? 2 : 4);
  const In* from = static_cast<const In*>(args.x) + row * args.stride;
  const In* also = static_cast<const In*>(args.second) + row * args.stride;
#pragma unroll
  for (int base = 0; base < kVectors; base += kBatch) {
    RawVector<In> first[kBatch];
    RawVector<In> second[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = min(element_of(base + i), args.n - kVector);
      first[i].load(from + at);
      if constexpr (kSwiglu) second[i].load(also + at);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float(&e)[kVector] = x[base + i];
      first[i].expand(e);
      if constexpr (kSwiglu) {
        float other[kVector];
        second[i].expand(other);
#pragma unroll
        for (int j = 0; j < kVector; ++j) e[j] = swiglu(e[j], other[j]);
      }
      if constexpr (kOperation == RowOperation::kNorm) {
        const int at = min(element_of(base + i), args.n - kVector);
        squares[at / kVector] = sum_of_squares(e);
        if (args.gain != nullptr) apply_gain(args.gain + at, e);
      }
    }
  }
}

template <typename In, RowOperation kOperation, int kVectors>
__global__ void __launch_bounds__(kMaxRowThreads, kVectors <= 4 ? 2 : 1)
    quantize_kernel(const Rows args) {
  extern __shared__ __align__(128) uint8_t shared[];
  begin_early();
  wait_early();
  Rows rows = args;
  rows.operation = kOperation;  // known to the compiler
  const int row = blockIdx.x;
  auto* squares = reinterpret_cast<float*>(shared);
  float x[kVectors][kVector];
  load_whole_row<In, kOperation>(rows, row, x, squares);
  const float scale = quantize_vectors(rows, x, squares, output_row(rows, row));
  if (threadIdx.x == 0) args.quant.scales[row] = scale;
}

template <typename In, bool kExact, int kTilesM, int kTilesN>
__global__ void __launch_bounds__(kMaxRowThreads, kTilesM* kTilesN > 4 ? 1 : 2)
    rotate_kernel(const Rows args) {
  extern __shared__ __align__(128) uint8_t shared[];
  begin_early();
  wait_early();
  const int row = blockIdx.x;
  auto* squares = reinterpret_cast<float*>(shared + plane_bytes(args.rotation));
  const float scale = rotate_by_factor<In, kExact, kTilesM, kTilesN>(
      args, StoredRow{row}, shared, squares, output_row(args, row));
  if (threadIdx.x == 0) args.quant.scales[row] = scale;
}

}  // namespace quarot::cuda
