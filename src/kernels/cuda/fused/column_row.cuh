// Rows [m][2^log2] whose factor is a known Hadamard matrix: float32 additions. A thread takes whole
// columns through the factor; then a thread takes two or four rows of some columns through the
// butterflies of the index bits that those differ in, and again, with others, through the rest. The
// order of the additions, the factor, then the bits from the highest to the lowest, depends neither
// on how they are shared out nor on how many rows there are.
#pragma once

#include <bit>
#include <type_traits>

#include "kernels/cuda/fused/butterflies.cuh"
#include "kernels/cuda/fused/factor_column.cuh"
#include "kernels/cuda/fused/row_pass.cuh"

namespace quarot::cuda {

// A block of kThreads has the row.
template <int kThreads_, int m_, int kLog2_>
struct ColumnSplit {
  static constexpr int m = m_;
  static constexpr int kLog2 = kLog2_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kColumns = 1 << kLog2;
  static constexpr int kEach =
      kColumns > kThreads ? kColumns / kThreads : 1;  // columns of a thread
  // The index bits of step 2: first those from kLowBits on, then those below.
  static constexpr int kBits = kEach == 1 ? kLog2 : std::countr_zero(unsigned{kThreads});
  static constexpr int kLowBits = kBits / 2;
  static constexpr int kHighBits = kBits - kLowBits;
  static constexpr int kSlots = kColumns / 8;  // units of four rows
  static constexpr int kUnits = m / 4 * kSlots;
  static constexpr int kTurns = (kUnits + kThreads - 1) / kThreads;
  static constexpr int kSquares = kColumns / 32;  // sums of so many columns

  // Where a column of m floats lies in shared memory: four rows are a vector, and a vector is left
  // free so that neighbouring columns, and those that step 2 reads together, do not meet in a bank.
  __host__ __device__ static constexpr int place(int column) {
    static_assert(m % 8 == 4);
    return column * m + (column >> kLowBits) * 4;
  }
};
template <typename Split>
constexpr int column_bytes() {
  constexpr int kFloats = Split::place(Split::kColumns) + Split::kSquares + Split::kThreads / 32;
  return (kFloats + 3) / 4 * 16;
}

// A column with the operation applied, but for the norm's factor.
template <typename Split, RowOperation kOperation, typename Source>
__device__ __forceinline__ void load_column(const Rows& args, const Source& source, int column,
                                            float (&x)[Split::m]) {
  if constexpr (kOperation != RowOperation::kSwiglu) {
    source.load_apart(args, column, Split::kColumns, x);
  } else {
    constexpr int kBatch = 4;  // so that registers need not hold all of both
#pragma unroll
    for (int i = 0; i < Split::m; i += kBatch) {
      const int at = column + i * Split::kColumns;
      float gates[kBatch];
      float ups[kBatch];
      source.load_apart(args, at, Split::kColumns, gates);
      source.load_second_apart(args, at, Split::kColumns, ups);
#pragma unroll
      for (int e = 0; e < kBatch; ++e) x[i + e] = swiglu(gates[e], ups[e]);
    }
  }
}
// The sum of the squares of 32 neighbouring columns, which a warp has.
template <int m>
__device__ __forceinline__ float squares_of_columns(const float (&x)[m]) {
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < m; ++i) sums[i % 4] = __fmaf_rn(x[i], x[i], sums[i % 4]);
  float sum = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0U, sum, lane));
  return sum;
}
template <typename Split>
__device__ __forceinline__ void weigh_column(const Rows& args, int column, float (&x)[Split::m]) {
  if (args.gain != nullptr) {
    const float* gain = args.gain + column;
#pragma unroll
    for (int i = 0; i < Split::m; ++i) x[i] = __fmul_rn(x[i], __ldg(gain + i * Split::kColumns));
  }
  if (args.rotation.signs != nullptr) {
    const int8_t* signs = args.rotation.signs + column;
#pragma unroll
    for (int i = 0; i < Split::m; ++i) {
      const int sign = __ldg(signs + i * Split::kColumns);
      x[i] = __uint_as_float(__float_as_uint(x[i]) ^ (sign & 0x80000000U));
    }
  }
}

// Between a thread's columns.
template <int kEach, int m>
__device__ __forceinline__ void column_butterflies(float (&x)[kEach][m]) {
#pragma unroll
  for (int apart = kEach / 2; apart > 0; apart /= 2) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if ((j & apart) != 0) continue;
#pragma unroll
      for (int i = 0; i < m; ++i) {
        const float sum = __fadd_rn(x[j][i], x[j + apart][i]);
        x[j + apart][i] = __fsub_rn(x[j][i], x[j + apart][i]);
        x[j][i] = sum;
      }
    }
  }
}

// Places kFirst and on of a column.
template <int kFirst, int kCount>
__device__ __forceinline__ void store_places(const float (&y)[kCount], float* column) {
  static_assert(kFirst % 4 == 0 && kCount % 4 == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    *reinterpret_cast<float4*>(column + kFirst + i) = {y[i], y[i + 1], y[i + 2], y[i + 3]};
  }
}

// Step 1: the row, with the factor and the butterflies between a thread's columns, in shared
// memory.
template <typename Split, RowOperation kOperation, typename Source>
__device__ __forceinline__ void turn_columns(const Rows& args, const Source& source, float* shared,
                                             float* squares) {
  constexpr int m = Split::m;
  constexpr int kEach = Split::kEach;
  const int t = static_cast<int>(threadIdx.x);
  float x[kEach][m];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    load_column<Split, kOperation>(args, source, t + j * Split::kThreads, x[j]);
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int column = t + j * Split::kThreads;
    if constexpr (kOperation == RowOperation::kNorm) {
      const float sum = squares_of_columns(x[j]);
      if (t % 32 == 0) squares[column / 32] = sum;
    }
    weigh_column<Split>(args, column, x[j]);
  }
  float* to = shared + Split::place(t);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    float y[m];
    multiply_column<m, 0>(x[j], y);
#pragma unroll
    for (int i = 0; i < m; ++i) x[j][i] = y[i];
  }
  column_butterflies(x);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    store_places<0>(x[j], to + Split::place(j * Split::kThreads));
  }
}

// A unit of step 2, which a thread has at a time: 2^kBits columns of four rows, or of two, such
// that it has 32 elements.
inline constexpr int kUnitElements = 32;
template <int kBits>
struct Unit {
  static_assert(kBits == 3 || kBits == 4);
  static constexpr int kCount = 1 << kBits;  // columns
  static constexpr int kRows = kUnitElements / kCount;
  using Vector = std::conditional_t<kRows == 4, float4, float2>;

  // Of `v` among the units of four rows: the columns' bits but those, and the first of its rows.
  __device__ static int rest(int v) { return kRows == 4 ? v : v % 8 | v / 16 << 3; }
  __device__ static int row(int v) { return kRows == 4 ? 0 : v / 8 % 2 * 2; }

  // The columns are 2^kFirst apart.
  template <typename Split, int kFirst>
  __device__ static void take(const float* from, float (&x)[kUnitElements]) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const auto v = *reinterpret_cast<const Vector*>(from + Split::place(j << kFirst));
      x[kRows * j] = v.x, x[kRows * j + 1] = v.y;
      if constexpr (kRows == 4) x[4 * j + 2] = v.z, x[4 * j + 3] = v.w;
    }
  }
  template <typename Split, int kFirst>
  __device__ static void keep(float* to, const float (&x)[kUnitElements]) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      auto& v = *reinterpret_cast<Vector*>(to + Split::place(j << kFirst));
      if constexpr (kRows == 4) {
        v = {x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]};
      } else {
        v = {x[2 * j], x[2 * j + 1]};
      }
    }
  }
  __device__ static void turn(float (&x)[kUnitElements]) {
    butterflies<16>(x);
    butterflies<8>(x);
    butterflies<4>(x);
    if constexpr (kRows == 2) butterflies<2>(x);
  }
};

template <typename Split>
__device__ __forceinline__ bool has_unit(int u) {
  return Split::kUnits % Split::kThreads == 0 || u < Split::kUnits;
}

// Step 2: what is left of the butterflies of units u. The lanes that exchange elements are of one
// warp: they have the same four rows, and as many columns.
template <typename Split>
__device__ __forceinline__ void turn_unit(int u, float* shared, float (&x)[kUnitElements]) {
  constexpr int kLowBits = Split::kLowBits;
  using Low = Unit<kLowBits>;
  const int v = u % Split::kSlots;
  float* rows = shared + u / Split::kSlots * 4;
  using High = Unit<Split::kHighBits>;
  const int rest = High::rest(v);
  const int low = rest & ((1 << kLowBits) - 1);
  float* at = rows + Split::place(low | rest >> kLowBits << Split::kBits) + High::row(v);
  if (has_unit<Split>(u)) {
    High::template take<Split, kLowBits>(at, x);
    High::turn(x);
    High::template keep<Split, kLowBits>(at, x);
  }
  __syncwarp();
  if (!has_unit<Split>(u)) return;
  Low::template take<Split, 0>(rows + Split::place(Low::rest(v) << kLowBits) + Low::row(v), x);
  Low::turn(x);
}

// The codes of unit u.
template <typename Split>
__device__ __forceinline__ void store_unit(const RowQuant& quant, const RowQuantizer& quantizer,
                                           int u, const float (&x)[kUnitElements], uint8_t* out) {
  using Low = Unit<Split::kLowBits>;
  constexpr int kRows = Low::kRows;
  constexpr int kWords = Low::kCount / 4;
  const int v = u % Split::kSlots;
  const int place = u / Split::kSlots * 4 + Low::row(v);
  const int column = Low::rest(v) << Split::kLowBits;
  // Of 32 columns some lanes have the low nibbles, others the high: each of a pair packs half.
  const bool upper = column % 32 >= 16;
#pragma unroll
  for (int e = 0; e < kRows; ++e) {
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const float* of = x + 4 * i * kRows + e;
      words[i] = quantizer.quantize_rounded(of[0], of[kRows], of[2 * kRows], of[3 * kRows]);
    }
    uint8_t* row = out + (place + e) * (Split::kColumns >> quant.pack_int4);
    if (!quant.pack_int4) {
      if (!has_unit<Split>(u)) continue;
      if constexpr (kWords == 2) {
        *reinterpret_cast<uint2*>(row + column) = {words[0], words[1]};
      } else {
        *reinterpret_cast<uint4*>(row + column) = {words[0], words[1], words[2], words[3]};
      }
      continue;
    }
    constexpr int kHalf = kWords / 2;
    uint8_t* to = row + column / 32 * 16 + column % 16 + (upper ? 4 * kHalf : 0);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const uint32_t own = words[upper ? kHalf + i : i];
      const uint32_t other = __shfl_xor_sync(~0U, words[upper ? i : kHalf + i], 16 / Low::kCount);
      if (has_unit<Split>(u)) {
        reinterpret_cast<uint32_t*>(to)[i] =
            upper ? pack_nibbles(other, own) : pack_nibbles(own, other);
      }
    }
  }
}

// In four chains: few warps are there to wait for one another's instructions.
__device__ __forceinline__ float largest_of_unit(const float (&x)[kUnitElements]) {
  float tops[4] = {};
#pragma unroll
  for (int i = 0; i < kUnitElements; ++i) tops[i % 4] = fmaxf(tops[i % 4], fabsf(x[i]));
  return fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
}

// Step 2, and quantising into `out`; `slots` has what step 1 left of squares, and room for a float
// a warp. Returns the scale.
template <typename Split>
__device__ __forceinline__ float finish_columns(const Rows& args, bool norm, float* shared,
                                                float* slots, uint8_t* out) {
  constexpr int kThreads = Split::kThreads;
  const int t = static_cast<int>(threadIdx.x);
  float* tops = slots + Split::kSquares;
  // The same for the whole warp, which the compiler shall know.
  const int first = static_cast<int>(__reduce_max_sync(~0U, static_cast<unsigned>(t - t % 32)));
  float x[Split::kTurns][kUnitElements] = {};
  float top = 0;
#pragma unroll
  for (int i = 0; i < Split::kTurns; ++i) {
    if (first + i * kThreads >= Split::kUnits) continue;
    turn_unit<Split>(t + i * kThreads, shared, x[i]);
    top = fmaxf(top, largest_of_unit(x[i]));
  }
  top = __uint_as_float(__reduce_max_sync(~0U, __float_as_uint(top)));
  if (t % 32 == 0) tops[t / 32] = top;
  __syncthreads();
  const float other = t % 32 < kThreads / 32 ? tops[t % 32] : 0;
  top = __uint_as_float(__reduce_max_sync(~0U, __float_as_uint(other)));
  float factor = args.rotation.scale;
  if (norm) {
    float sum = slots[0];
#pragma unroll
    for (int i = 1; i < Split::kSquares; ++i) sum = __fadd_rn(sum, slots[i]);
    factor *= norm_of(sum, args.n, args.eps);
  }
  const RowQuantizer quantizer(args.quant, factor, top);
#pragma unroll
  for (int i = 0; i < Split::kTurns; ++i) {
    if (first + i * kThreads >= Split::kUnits) continue;
    store_unit<Split>(args.quant, quantizer, t + i * kThreads, x[i], out);
  }
  return quantizer.scale();
}

// A row, as args says, turned and quantised into `out`, by a block of Split::kThreads. `shared` has
// column_bytes(). Returns the scale.
template <typename Split, RowOperation kOperation, typename Source>
__device__ __forceinline__ float column_row(const Rows& args, const Source& source, float* shared,
                                            uint8_t* out) {
  float* slots = shared + Split::place(Split::kColumns);
  turn_columns<Split, kOperation>(args, source, shared, slots);
  __syncthreads();
  return finish_columns<Split>(args, kOperation == RowOperation::kNorm, shared, slots, out);
}

// Whether column_row turns such rows, to the same bits wherever they are turned. Of 12 rows of 128,
// one row with a norm is faster on tensor cores.
__host__ __device__ inline bool suits_columns(const Rows& rows) {
  return rows.rotation.known && rows.element == Element::kFloat32 &&
         (rows.rotation.m != 12 || rows.operation != RowOperation::kNorm);
}

}  // namespace quarot::cuda
