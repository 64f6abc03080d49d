// One row of those that column_row.cuh turns, where the row is but a part of a block's work: by
// more threads, with the same additions.
#pragma once

#include <iterator>

#include "kernels/cuda/fused/column_row.cuh"

namespace quarot::cuda {

// The first of a column's places that a thread turns.
constexpr int part_begin(int m, int parts, int part) {
  return 4 * ((m / 4 * part + parts - 1) / parts);
}

// Step 1, of the row at `row` in shared memory. kInPlace: there it will also be.
template <typename Split, bool kInPlace>
__device__ __forceinline__ void turn_column_parts(const Rows& args, const float* row, float* shared,
                                                  float* squares) {
  constexpr int m = Split::m;
  constexpr int kParts = Split::kThreads / Split::kColumns;
  static_assert(kParts * Split::kColumns == Split::kThreads);
  const int column = static_cast<int>(threadIdx.x) % Split::kColumns;
  // The same for the whole warp, which the compiler shall know.
  const auto part = static_cast<int>(__reduce_max_sync(~0U, threadIdx.x / Split::kColumns));
  unroll<kParts>([&]<int kPart>() {
    if (part != kPart) return;
    constexpr int kFirst = part_begin(m, kParts, kPart);
    constexpr int kCount = (kPart + 1 < kParts ? part_begin(m, kParts, kPart + 1) : m) - kFirst;
    float x[m];
#pragma unroll
    for (int i = 0; i < m; ++i) x[i] = row[column + i * Split::kColumns];
    if (kPart == 0 && args.operation == RowOperation::kNorm) {
      const float sum = squares_of_columns(x);
      if (threadIdx.x % 32 == 0) squares[column / 32] = sum;
    }
    float y[kCount > 0 ? kCount : 1];
    if constexpr (kCount > 0) {
      weigh_column<Split>(args, column, x);
      multiply_column<m, kFirst>(x, y);
    }
    if constexpr (kInPlace) barrier_sync(0, Split::kThreads);
    if constexpr (kCount > 0) store_places<kFirst>(y, shared + Split::place(column));
  });
}

// The row with its operation applied, but for a norm, into shared memory.
template <int kVectors, typename Source>
__device__ __forceinline__ void stage_row(const Rows& args, const Source& source, float* shared) {
  RawRow<float, kVectors> raw;
  source.load(args, 0, raw);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float x[kVector];
    raw.x[i].expand(x);
    if constexpr (Source::has(RowOperation::kSwiglu)) {
      if (args.operation == RowOperation::kSwiglu) {
        float second[kVector];
        raw.second[i].expand(second);
#pragma unroll
        for (int e = 0; e < kVector; ++e) x[e] = swiglu(x[e], second[e]);
      }
    }
    RawVector<float> staged{{{x[0], x[1], x[2], x[3]}, {x[4], x[5], x[6], x[7]}}};
    if (element_of(i) < args.n) staged.store(shared + element_of(i));
  }
}

template <typename Split, typename Source>
__device__ __forceinline__ float rotate_columns_of(const Rows& args, const Source& source,
                                                   float* shared, uint8_t* out) {
  float* slots = shared + Split::place(Split::kColumns);
  if constexpr (Source::kShared) {
    turn_column_parts<Split, false>(args, source.from, shared, slots);
  } else {
    constexpr int kEach = Split::kThreads * kVector;
    stage_row<(Split::m * Split::kColumns + kEach - 1) / kEach>(args, source, shared);
    __syncthreads();
    turn_column_parts<Split, true>(args, shared, shared, slots);
  }
  __syncthreads();
  return finish_columns<Split>(args, args.operation == RowOperation::kNorm, shared, slots, out);
}

// A row that suits_columns, by a whole block of kMaxRowThreads; `shared` has plane_bytes(), which
// is more than this takes. Out of line: it is much code, of which a model needs little.
template <typename Source>
__device__ __noinline__ float rotate_columns(const Rows& args, const Source& source,
                                             uint8_t* shared, uint8_t* out) {
  const RowRotation& rotation = args.rotation;
  float scale = 0;
  unroll<std::size(kColumnShapes)>([&]<int i>() {
    constexpr int m = kColumnShapes[i].m;
    constexpr int kLog2 = kColumnShapes[i].log2;
    if (rotation.m != m || rotation.columns != 1 << kLog2) return;
    using Split = ColumnSplit<kMaxRowThreads, m, kLog2>;
    scale = rotate_columns_of<Split>(args, source, reinterpret_cast<float*>(shared), out);
  });
  return scale;
}

}  // namespace quarot::cuda
