// A dense factor on tensor cores with float32 accuracy: a value enters as the sum of two float16,
// high and low, against factors that are exact in float16 (±1; a factor that is not ±1 is a sum of
// two as well).
#pragma once

#include "kernels/cuda/fused/half_terms.cuh"
#include "kernels/cuda/fused/row_pass.cuh"
#include "kernels/cuda/fused/walsh_row.cuh"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda {

// Bytes between rows of the float16 planes and of the staged codes: no two of 8 rows meet in a
// bank.
inline constexpr int kPadding = 16;
__host__ __device__ constexpr int plane_pitch(int columns) { return 2 * columns + kPadding; }
__host__ __device__ constexpr int code_pitch(int columns) { return columns + kPadding; }
// What turning a row takes: both planes, of high and of low terms, or the floats.
__host__ __device__ constexpr int plane_bytes(const RowRotation& rotation) {
  if (rotation.log2 > 0) return walsh_bytes(rotation.log2);
  return 2 * ((rotation.m + 15) / 16) * 16 * plane_pitch(rotation.columns);
}
// Steps of 16 whose signs are in one word of the factor, and 1 twice, as float16.
inline constexpr int kSignSteps = 4;
inline constexpr uint32_t kOnes = 0x3c003c00U;
__host__ __device__ constexpr int factor_bytes(const RowRotation& rotation) {
  const int tiles = (rotation.m + 15) / 16;
  return rotation.terms == 1 ? tiles * ((tiles + kSignSteps - 1) / kSignSteps) * 128
                             : 2 * tiles * tiles * 512;
}

// The row in shared memory as the B operand of the dense factor: float16 planes [m][columns], high
// terms and, unless kExact, low ones; rows up to a multiple of 16 are zero.
template <bool kExact>
struct Planes {
  uint8_t* high;
  int pitch;
  int bytes;  // of a plane

  template <bool kOther>
  __device__ explicit Planes(const Planes<kOther>& planes)
      : high(planes.high), pitch(planes.pitch), bytes(planes.bytes) {}
  __device__ Planes(uint8_t* shared, int m, int columns)
      : high(shared), pitch(plane_pitch(columns)), bytes((m + 15) / 16 * 16 * pitch) {}
  __device__ Planes(uint8_t* shared, const RowRotation& rotation)
      : Planes(shared, rotation.m, rotation.columns) {}
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

// A warp has kTilesM row tiles by kTilesN column tiles, 16 × 16 each, of F · X. Tiles past the end
// are the last ones once more: computed and written twice, with the same values.
template <int kTilesM, int kTilesN>
struct WarpTiles {
  int tiles_m;
  int tiles_n;
  int first_m;
  int first_n;

  __device__ WarpTiles(const RowRotation& rotation, int warp)
      : WarpTiles(rotation.m, rotation.columns, warp) {}
  __device__ WarpTiles(int m, int columns, int warp)
      : tiles_m((m + 15) / 16), tiles_n(columns / 16) {
    const int warps_n = (tiles_n + kTilesN - 1) / kTilesN;
    first_m = warp / warps_n * kTilesM;
    first_n = warp % warps_n * kTilesN;
  }
  __device__ int m(int i) const { return min(first_m + i, tiles_m - 1); }
  __device__ int n(int j) const { return min(first_n + j, tiles_n - 1); }

  // y[i][j]: the D fragments of columns 0…7 and 8…15 of a tile. Rows past the factor's last are of
  // no meaning, but no larger than its.
  template <bool kExact>
  __device__ void multiply(const RowRotation& rotation, const Planes<kExact>& x,
                           float (&y)[kTilesM][kTilesN][2][4]) const {
    if (rotation.terms == 1) {
      multiply_signs(rotation, x, y);
    } else {
      multiply_terms(rotation, x, y);
    }
  }
  // Of numbers that are sums of two: the second's products with low terms are too small to count.
  template <bool kExact>
  __device__ void multiply_terms(const RowRotation& rotation, const Planes<kExact>& x,
                                 float (&y)[kTilesM][kTilesN][2][4]) const {
    const auto* factor = static_cast<const uint4*>(rotation.factor) + threadIdx.x % 32;
    const Columns columns(*this, x.high, x.pitch);
#pragma unroll 1
    for (int step = 0; step < tiles_m; ++step) {
      Fragments a;
      load(factor, step, a);
      multiply_step(a, x, columns, step, y);
      load(factor + tiles_m * tiles_m * 32, step, a);
      multiply_step(a, Planes<true>(x), columns, step, y);
    }
  }

 private:
  using Fragments = uint32_t[kTilesM][4];
  // Where this lane's rows of the column tiles begin, in shared memory.
  struct Columns {
    uint32_t at[kTilesN];

    __device__ Columns(const WarpTiles& tiles, const uint8_t* plane, int pitch) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
        at[j] = shared_address(plane) + lane % 16 * pitch + (tiles.n(j) * 16 + lane / 16 * 8) * 2;
      }
    }
  };

  // Of ±1: fragments are made from bits, of four steps in a word.
  template <bool kExact>
  __device__ void multiply_signs(const RowRotation& rotation, const Planes<kExact>& x,
                                 float (&y)[kTilesM][kTilesN][2][4]) const {
    const auto* signs = static_cast<const uint32_t*>(rotation.factor) + threadIdx.x % 32;
    const Columns columns(*this, x.high, x.pitch);
    const int groups = (tiles_m + kSignSteps - 1) / kSignSteps;
    uint32_t word[kTilesM] = {};
    uint32_t next[kTilesM];
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) next[i] = __ldg(signs + m(i) * groups * 32);
#pragma unroll 1  // for fragments of few steps at a time, by registers
    for (int step = 0; step < tiles_m; ++step) {
      if (step % kSignSteps == 0) {
        const int group = min(step / kSignSteps + 1, groups - 1);
#pragma unroll
        for (int i = 0; i < kTilesM; ++i) {
          word[i] = next[i];
          next[i] = __ldg(signs + (m(i) * groups + group) * 32);
        }
      }
      Fragments a;
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
        for (int r = 0; r < 4; ++r) a[i][r] = (word[i] << r & 0x80008000U) | kOnes;
        word[i] <<= 4;
      }
      multiply_step(a, x, columns, step, y);
    }
  }
  template <bool kExact>
  __device__ void multiply_step(const Fragments& a, const Planes<kExact>& x, const Columns& columns,
                                int step, float (&y)[kTilesM][kTilesN][2][4]) const {
    uint32_t b[4];
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) {
      load_matrix_x4_transposed(b, columns.at[j] + step * 16 * x.pitch);
      multiply_tile(a, b, y, j);
      if constexpr (!kExact) {
        load_matrix_x4_transposed(b, columns.at[j] + step * 16 * x.pitch + x.bytes);
        multiply_tile(a, b, y, j);
      }
    }
  }
  __device__ void load(const uint4* factor, int step, Fragments& a) const {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
      const uint4 v = __ldg(factor + (m(i) * tiles_m + step) * 32);
      a[i][0] = v.x, a[i][1] = v.y, a[i][2] = v.z, a[i][3] = v.w;
    }
  }
  __device__ static void multiply_tile(const Fragments& a, const uint32_t (&b)[4],
                                       float (&y)[kTilesM][kTilesN][2][4], int j) {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
      mma_f16(y[i][j][0], a[i], b[0], b[1]);
      mma_f16(y[i][j][1], a[i], b[2], b[3]);
    }
  }
};

template <int kTilesM, int kTilesN>
__device__ __forceinline__ float largest_of(const float (&y)[kTilesM][kTilesN][2][4]) {
  float top = 0;
#pragma unroll
  for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) {
      top = fmaxf(top, fmaxf(largest(y[i][j][0]), largest(y[i][j][1])));
    }
  }
  return top;
}

}  // namespace quarot::cuda
