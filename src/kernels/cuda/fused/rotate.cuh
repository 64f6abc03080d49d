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
// Both planes, of high and of low terms.
__host__ __device__ constexpr int plane_bytes(const RowRotation& rotation) {
  return 2 * ((rotation.m + 15) / 16) * 16 * plane_pitch(rotation.columns);
}
__host__ __device__ constexpr int factor_bytes(const RowRotation& rotation) {
  const int tiles = (rotation.m + 15) / 16;
  return rotation.terms * tiles * tiles * 512;
}
// The rotation's tables into L2, before begin_early, by a block of kMaxRowThreads.
__device__ __forceinline__ void prefetch_rotation(const RowRotation& rotation) {
  prefetch_bytes<kMaxRowThreads>(rotation.factor, factor_bytes(rotation));
  prefetch_bytes<kMaxRowThreads>(kWalshTable.fragment[rotation.walsh_bits],
                                 sizeof(kWalshTable.fragment[0]));
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
    raw.expand(args, base, x + base, squares);
  }
}

// A row, as args says, quantised into `out`; `squares` has room for a float a vector. Returns the
// scale.
template <typename In, int kVectors, typename Source>
__device__ __forceinline__ float quantize_row(const Rows& args, const Source& source,
                                              float* squares, uint8_t* out) {
  __shared__ float slots[kMaxRowThreads / 32];
  float x[kVectors][kVector];
  load_row<In>(args, source, x, squares);
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
  // Until they can be stored so, floats may wait where they will be: their upper halves in the one
  // plane, their lower halves in the other.
  __device__ void keep(int at, int row, const float (&x)[kVector]) {
    uint32_t h[4];
    uint32_t l[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t a = __float_as_uint(x[2 * i]);
      const uint32_t b = __float_as_uint(x[2 * i + 1]);
      h[i] = __byte_perm(a, b, 0x7632);
      l[i] = __byte_perm(a, b, 0x5410);
    }
    uint8_t* to = high + 2 * at + row * kPadding;
    *reinterpret_cast<uint4*>(to) = {h[0], h[1], h[2], h[3]};
    *reinterpret_cast<uint4*>(to + bytes) = {l[0], l[1], l[2], l[3]};
  }
  __device__ void take(int at, int row, float (&x)[kVector]) const {
    const uint8_t* from = high + 2 * at + row * kPadding;
    const auto h = *reinterpret_cast<const uint4*>(from);
    const auto l = *reinterpret_cast<const uint4*>(from + bytes);
    const uint32_t hs[4] = {h.x, h.y, h.z, h.w};
    const uint32_t ls[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(__byte_perm(ls[i], hs[i], 0x5410));
      x[2 * i + 1] = __uint_as_float(__byte_perm(ls[i], hs[i], 0x7632));
    }
  }
};

// A factor of ±1 as signs, [row tile][group of k-steps][lane] words: bits sign_bit(step, reg) and
// 16 more of a lane's word are those of the halves of its fragment's register. Padding counts as
// +1.
inline constexpr int kSignSteps = 4;
__host__ __device__ constexpr int sign_groups(int tiles) {
  return (tiles + kSignSteps - 1) / kSignSteps;
}
__host__ __device__ constexpr int sign_bit(int step, int reg) {
  return step % kSignSteps * 4 + reg;
}
__host__ __device__ constexpr int sign_bytes(const RowRotation& rotation) {
  const int tiles = (rotation.m + 15) / 16;
  return tiles * sign_groups(tiles) * 128;
}
// By a block, from the factor's words.
__device__ __forceinline__ void make_signs(const RowRotation& rotation, uint32_t* signs) {
  const int tiles = (rotation.m + 15) / 16;
  const int groups = sign_groups(tiles);
  const auto* factor = static_cast<const uint4*>(rotation.factor);
  for (int i = threadIdx.x; i < tiles * groups * 32; i += blockDim.x) {
    const int row = i / 32 / groups;
    const int first = i / 32 % groups * kSignSteps;
    uint32_t word = 0;
    for (int step = first; step < min(first + kSignSteps, tiles); ++step) {
      const uint4 v = factor[(row * tiles + step) * 32 + i % 32];
      const uint32_t a[4] = {v.x, v.y, v.z, v.w};
      for (int reg = 0; reg < 4; ++reg) {
        word |= (a[reg] >> 15 & 0x10001U) << sign_bit(step, reg);
      }
    }
    signs[i] = word;
  }
}

// A warp has kTilesM row tiles by kTilesN column tiles, 16 × 16 each, of F · X. Tiles past the end
// are the last ones once more: computed and written twice, with the same values.
template <int kTilesM, int kTilesN>
struct WarpTiles {
  // Of the factor, whose loads are under way at once.
  static constexpr int kSteps = kTilesM == 1 && kTilesN != 2 ? 4 : 1;

  int tiles_m;
  int tiles_n;
  int first_m;
  int first_n;

  __device__ WarpTiles(const RowRotation& rotation, int warp)
      : tiles_m((rotation.m + 15) / 16), tiles_n(rotation.columns / 16) {
    const int warps_n = (tiles_n + kTilesN - 1) / kTilesN;
    first_m = warp / warps_n * kTilesM;
    first_n = warp % warps_n * kTilesN;
  }
  __device__ int m(int i) const { return min(first_m + i, tiles_m - 1); }
  __device__ int n(int j) const { return min(first_n + j, tiles_n - 1); }

  // Rows past the factor's, of products with signs.
  __device__ void clear_padding(const RowRotation& rotation,
                                float (&y)[kTilesM][kTilesN][2][4]) const {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int row = m(i) * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * lower;
        if (row < rotation.m) continue;
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) {
          y[i][j][0][2 * lower] = y[i][j][0][2 * lower + 1] = 0;
          y[i][j][1][2 * lower] = y[i][j][1][2 * lower + 1] = 0;
        }
      }
    }
  }

  // y[i][j]: the D fragments of columns 0…7 and 8…15 of a tile.
  template <bool kExact>
  __device__ void multiply(const RowRotation& rotation, const uint32_t* signs,
                           const Planes<kExact>& x, float (&y)[kTilesM][kTilesN][2][4]) const {
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
    for (int first = 0; first < tiles_m; first += kSteps) {
      uint32_t a[kSteps][kTilesM][4];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (signs != nullptr) {
          load_signs(signs, first + i, a[i]);
        } else {
          load(factor, min(first + i, tiles_m - 1), a[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int step = first + i;
        if (step >= tiles_m) break;
        uint32_t b[4];
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) {
          load_matrix_x4_transposed(b, column[j] + step * 16 * x.pitch);
          multiply_tile(a[i], b, y, j);
          if constexpr (!kExact) {
            load_matrix_x4_transposed(b, column[j] + step * 16 * x.pitch + x.bytes);
            multiply_tile(a[i], b, y, j);
          }
        }
        if (rotation.terms == 1) continue;
        load(factor, step + tiles_m * tiles_m, a[i]);
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) {
          load_matrix_x4_transposed(b, column[j] + step * 16 * x.pitch);
          multiply_tile(a[i], b, y, j);
        }
      }
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
  __device__ void load_signs(const uint32_t* signs, int step, uint32_t (&a)[kTilesM][4]) const {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
      const uint32_t word =
          signs[(m(i) * sign_groups(tiles_m) + step / kSignSteps) * 32 + threadIdx.x % 32];
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) {
        a[i][reg] = 0x3c003c00U | (word << (15 - sign_bit(step, reg)) & 0x80008000U);
      }
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
    top = fmaxf(top, largest(x[i]));
  }
  const float range = range_scale(largest_of_block(slots, top));

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
  return range;
}

// What the factor's products with those planes are of the result, but for the norm.
__device__ __forceinline__ float plane_unit(const RowRotation& rotation, float range) {
  const float walsh_unit = rotation.walsh_bits > 0 ? 16.0F : 1.0F;
  return rotation.scale * walsh_unit * inverse_range(range);
}

// As quantize_row, with the rotation; `shared` has room for the planes.
template <typename In, bool kExact, int kTilesM, int kTilesN, typename Source>
__device__ __forceinline__ float rotate_row(const Rows& args, const Source& source, uint8_t* shared,
                                            float* squares, uint8_t* out) {
  constexpr int kVectors = kTilesM * kTilesN;
  __shared__ float slots[kMaxRowThreads / 32];
  const RowRotation& rotation = args.rotation;
  const float range = fill_planes<In, kExact, kVectors>(args, source, shared, squares);
  const WarpTiles<kTilesM, kTilesN> tiles(rotation, threadIdx.x / 32);
  const bool busy = tiles.first_m < tiles.tiles_m;
  float y[kTilesM][kTilesN][2][4] = {};
  if (busy) {
    if (kExact && rotation.walsh_bits == 0) {
      tiles.multiply(rotation, source.signs(), Planes<true>(shared, rotation), y);
    } else {
      tiles.multiply(rotation, source.signs(), Planes<false>(shared, rotation), y);
    }
    if (source.signs() != nullptr) tiles.clear_padding(rotation, y);
  }

  const float factor = norm_factor(args, squares) * plane_unit(rotation, range);
  float top = 0;
#pragma unroll
  for (int i = 0; i < kVectors * 2; ++i) top = fmaxf(top, largest((&y[0][0][0])[i]));
  const RowQuantizer quantizer(args.quant, factor, largest_of_block(slots, top));
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
  store_codes(args, shared, out);
  return quantizer.scale();
}

__device__ __forceinline__ uint8_t* output_row(const Rows& args, int row) {
  return static_cast<uint8_t*>(args.quant.values) +
         static_cast<size_t>(row) * args.n / (args.quant.pack_int4 ? 2 : 1);
}

template <typename In, int kVectors>
__global__ void __launch_bounds__(kMaxRowThreads) quantize_kernel(const Rows args) {
  extern __shared__ __align__(128) uint8_t shared[];
  begin_early();
  wait_early();
  const int row = blockIdx.x;
  const float scale = quantize_row<In, kVectors>(
      args, StoredRow{row}, reinterpret_cast<float*>(shared), output_row(args, row));
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
  const float scale = rotate_row<In, kExact, kTilesM, kTilesN>(args, StoredRow{row}, shared,
                                                               squares, output_row(args, row));
  if (threadIdx.x == 0) args.quant.scales[row] = scale;
}

}  // namespace quarot::cuda
