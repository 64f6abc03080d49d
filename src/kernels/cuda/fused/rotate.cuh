// Row kernels: without a rotation, and with one.
//
// The rotation runs on tensor cores with float32 accuracy: a value enters as the sum of two
// float16, high and low, against factors that are exact in float16 (±1; a factor that is not ±1 is
// a sum of two as well). A power of two, from the row's maximum, keeps both terms in float16's
// range. What is bf16 to begin with needs no low term at first. First the Walsh transform of up to
// 256 consecutive elements in a warp's registers (Walsh256), then the dense factor across
// [m][columns] through shared memory.
#pragma once

#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fused/row_pass.cuh"
#include "kernels/cuda/fused/walsh.cuh"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda {

// Bytes between rows of the float16 planes and of the staged codes: no two of 8 rows meet in a
// bank.
inline constexpr int kPadding = 16;
__host__ __device__ constexpr int plane_pitch(int columns) { return 2 * columns + kPadding; }
__host__ __device__ constexpr int code_pitch(int columns) { return columns + kPadding; }

template <typename In, int kVectors>
__device__ __forceinline__ void load_row(const RowArgs& args, int row,
                                         float (&x)[kVectors][kVector], float& squares) {
  constexpr int kBatch = kVectors == 8 ? 4 : kVectors == 4 ? 2 : kVectors;  // by registers
  static_assert(kVectors % kBatch == 0);
#pragma unroll
  for (int base = 0; base < kVectors; base += kBatch) {
    RawRow<In, kBatch> raw;
    raw.load(args, row, base);
    raw.expand(args, row, base, x, squares);
  }
}

template <typename In, int kVectors>
__global__ void __launch_bounds__(kMaxRowThreads) quantize_kernel(const RowArgs args) {
  __shared__ MaxAndSum slots[kMaxRowThreads / 32];
  begin_early();
  const int row = blockIdx.x;
  float x[kVectors][kVector];
  float squares = 0;
  load_row<In>(args, row, x, squares);
  float top = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) top = fmaxf(top, largest(x[i]));
  const MaxAndSum all = reduce_block<true>(slots, top, squares);
  const RowQuantizer quantizer(args.quant, norm_factor(args, all.sum), all.top);
  if (threadIdx.x == 0) args.quant.scales[row] = quantizer.scale();
  auto* out = static_cast<uint8_t*>(args.quant.values) +
              static_cast<size_t>(row) * args.n / (args.quant.pack_int4 ? 2 : 1);
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
}

// Which row of [m][columns] element `at` is in: at / columns.
__device__ __forceinline__ int matrix_row(const RowRotation& rotation, int at) {
  return static_cast<int>(__umulhi(at, rotation.inverse_columns));
}

// Writes a row of int8 codes that lie in shared memory, rows of [m][columns] kPadding bytes apart,
// as the row of the output.
__device__ __forceinline__ void store_codes(const RowArgs& args, int row, const uint8_t* codes) {
  const auto piece = [&](int at) {
    return *reinterpret_cast<const uint4*>(codes + at + matrix_row(args.rotation, at) * kPadding);
  };
  auto* out = static_cast<uint8_t*>(args.quant.values);
  if (!args.quant.pack_int4) {
    out += static_cast<size_t>(row) * args.n;
    for (int at = 16 * threadIdx.x; at < args.n; at += 16 * blockDim.x) {
      *reinterpret_cast<uint4*>(out + at) = piece(at);
    }
    return;
  }
  out += static_cast<size_t>(row) * args.n / 2;
  for (int at = 32 * threadIdx.x; at < args.n; at += 32 * blockDim.x) {
    const uint4 low = piece(at);
    const uint4 high = piece(at + 16);
    *reinterpret_cast<uint4*>(out + at / 2) = {
        pack_nibbles(low.x, high.x), pack_nibbles(low.y, high.y), pack_nibbles(low.z, high.z),
        pack_nibbles(low.w, high.w)};
  }
}

__device__ __forceinline__ void apply_signs(const int8_t* signs, int at, float (&x)[kVector]) {
  const auto bytes = *reinterpret_cast<const uint2*>(signs + at);
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    const uint32_t flip = (e < 4 ? bytes.x : bytes.y) << (24 - e % 4 * 8) & 0x80000000U;
    x[e] = __uint_as_float(__float_as_uint(x[e]) ^ flip);
  }
}

// The row in shared memory as the B operand of the dense factor: float16 planes [m][columns], high
// terms and, unless kExact, low ones; rows up to a multiple of 16 are zero.
template <bool kExact>
struct Planes {
  uint8_t* high;
  int pitch;
  int bytes;  // of a plane

  __device__ Planes(uint8_t* shared, const RowRotation& rotation)
      : high(shared),
        pitch(plane_pitch(rotation.columns)),
        bytes((rotation.m + 15) / 16 * 16 * pitch) {}
  __device__ void clear_padding(int m) {
    for (int at = m * pitch + 16 * threadIdx.x; at < bytes; at += 16 * blockDim.x) {
      *reinterpret_cast<uint4*>(high + at) = {};
      if constexpr (!kExact) *reinterpret_cast<uint4*>(high + bytes + at) = {};
    }
  }
  // The elements from `at` on, which is in row `row`.
  __device__ void store(int at, int row, const float (&x)[kVector]) {
    uint8_t* to = high + 2 * at + row * kPadding;
    if constexpr (kExact) {
      *reinterpret_cast<uint4*>(to) = {pack_half2(x[0], x[1]), pack_half2(x[2], x[3]),
                                       pack_half2(x[4], x[5]), pack_half2(x[6], x[7])};
    } else {
      uint4 h;
      uint4 l;
      split(x[0], x[1], h.x, l.x);
      split(x[2], x[3], h.y, l.y);
      split(x[4], x[5], h.z, l.z);
      split(x[6], x[7], h.w, l.w);
      *reinterpret_cast<uint4*>(to) = h;
      *reinterpret_cast<uint4*>(to + bytes) = l;
    }
  }
};

// A warp has kTilesM row tiles by kTilesN column tiles, 16 × 16 each, of F · X. Tiles past the end
// are the last ones once more: computed and written twice, with the same values.
template <int kTilesM, int kTilesN>
struct WarpTiles {
  int tiles_m;
  int tiles_n;
  int first_m;
  int first_n;

  __device__ explicit WarpTiles(const RowRotation& rotation)
      : tiles_m((rotation.m + 15) / 16), tiles_n(rotation.columns / 16) {
    const int warp = threadIdx.x / 32;
    const int warps_n = (tiles_n + kTilesN - 1) / kTilesN;
    first_m = warp / warps_n * kTilesM;
    first_n = warp % warps_n * kTilesN;
  }
  __device__ int m(int i) const { return min(first_m + i, tiles_m - 1); }
  __device__ int n(int j) const { return min(first_n + j, tiles_n - 1); }

  // y[i][j]: the D fragments of columns 0…7 and 8…15 of a tile.
  template <bool kExact>
  __device__ void multiply(const RowRotation& rotation, const Planes<kExact>& x,
                           float (&y)[kTilesM][kTilesN][2][4]) const {
    const int lane = threadIdx.x % 32;
    const uint4* factor[kTilesM];
    uint32_t column[kTilesN];
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
      factor[i] = static_cast<const uint4*>(rotation.factor) + m(i) * tiles_m * 32 + lane;
    }
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) {
      column[j] = shared_address(x.high) + lane % 16 * x.pitch + (n(j) * 16 + lane / 16 * 8) * 2;
    }
    for (int step = 0; step < tiles_m; ++step) {
      uint32_t a[kTilesM][4];
      load(factor, step, a);
      uint32_t high[kTilesN][4];
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
        load_matrix_x4_transposed(high[j], column[j] + step * 16 * x.pitch);
        multiply_tile(a, high[j], y, j);
        if constexpr (!kExact) {
          uint32_t low[4];
          load_matrix_x4_transposed(low, column[j] + step * 16 * x.pitch + x.bytes);
          multiply_tile(a, low, y, j);
        }
      }
      if (rotation.terms == 1) continue;
      load(factor, step + tiles_m * tiles_m, a);
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) multiply_tile(a, high[j], y, j);
    }
  }

 private:
  __device__ static void load(const uint4* const (&factor)[kTilesM], int step,
                              uint32_t (&a)[kTilesM][4]) {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
      const uint4 v = __ldg(factor[i] + step * 32);
      a[i][0] = v.x, a[i][1] = v.y, a[i][2] = v.z, a[i][3] = v.w;
    }
  }
  __device__ static void multiply_tile(const uint32_t (&a)[kTilesM][4], const uint32_t (&b)[4],
                                       float (&y)[kTilesM][kTilesN][2][4], int j) {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
      mma_f16(y[i][j][0], a[i], b[0], b[1]);
      mma_f16(y[i][j][1], a[i], b[2], b[3]);
    }
  }
};

// kExact: the elements are bf16 as loaded, with nothing multiplied in.
template <typename In, bool kExact, int kTilesM, int kTilesN>
__global__ void __launch_bounds__(kMaxRowThreads, kTilesM* kTilesN > 4 ? 1 : 2)
    rotate_kernel(const RowArgs args) {
  constexpr int kVectors = kTilesM * kTilesN;
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ MaxAndSum slots[2][kMaxRowThreads / 32];
  begin_early();
  const RowRotation& rotation = args.rotation;
  const int row = blockIdx.x;
  float x[kVectors][kVector];
  float squares = 0;
  load_row<In>(args, row, x, squares);
  float top = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (rotation.signs != nullptr && element_of(i) < args.n) {
      apply_signs(rotation.signs, element_of(i), x[i]);
    }
    top = fmaxf(top, largest(x[i]));
  }
  const MaxAndSum all = reduce_block<true>(slots[0], top, squares);
  const float range = range_scale(all.top);

  if (rotation.walsh_bits > 0) {
    Planes<false> planes(shared, rotation);
    planes.clear_padding(rotation.m);
    const Walsh256 walsh(rotation.walsh_bits);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = element_of(i);
      if (at - static_cast<int>(threadIdx.x % 32) * kVector >= args.n) break;  // the whole warp
      walsh.apply<kExact>(x[i], range);
      if (at < args.n) planes.store(at, matrix_row(rotation, at), x[i]);
    }
  } else {
    Planes<kExact> planes(shared, rotation);
    planes.clear_padding(rotation.m);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (float& e : x[i]) e *= range;
      const int at = element_of(i);
      if (at < args.n) planes.store(at, matrix_row(rotation, at), x[i]);
    }
  }
  __syncthreads();

  const WarpTiles<kTilesM, kTilesN> tiles(rotation);
  const bool busy = tiles.first_m < tiles.tiles_m;
  float y[kTilesM][kTilesN][2][4] = {};
  if (busy) {
    if (kExact && rotation.walsh_bits == 0) {
      tiles.multiply(rotation, Planes<true>(shared, rotation), y);
    } else {
      tiles.multiply(rotation, Planes<false>(shared, rotation), y);
    }
  }

  const float walsh_unit = rotation.walsh_bits > 0 ? 16.0F : 1.0F;
  const float factor =
      norm_factor(args, all.sum) * (rotation.scale * walsh_unit) * inverse_range(range);
  top = 0;
#pragma unroll
  for (int i = 0; i < kVectors * 2; ++i) top = fmaxf(top, largest((&y[0][0][0])[i]));
  const RowQuantizer quantizer(args.quant, factor, reduce_block<false>(slots[1], top, 0).top);
  if (threadIdx.x == 0) args.quant.scales[row] = quantizer.scale();
  const int codes = code_pitch(rotation.columns);
  if (busy) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kVectors * 2; ++i) {  // halves of tiles, 8 columns each
      const int m = tiles.m(i / 2 / kTilesN) * 16 + lane / 4;
      const int n = tiles.n(i / 2 % kTilesN) * 16 + i % 2 * 8 + lane % 4 * 2;
      uint8_t* to = shared + m * codes + n;
      uint32_t q[4];
      quantizer.quantize((&y[0][0][0])[i], q);
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(__byte_perm(q[0], q[1], 0x0040));
      *reinterpret_cast<uint16_t*>(to + 8 * codes) =
          static_cast<uint16_t>(__byte_perm(q[2], q[3], 0x0040));
    }
  }
  __syncthreads();
  store_codes(args, row, shared);
}

}  // namespace quarot::cuda
