// Where a block of gemm_stream gets its activations: read as they are, or, of one token, made by
// each block for itself from the row they come from, which costs less than a kernel before it.
#pragma once

#include <optional>
#include <type_traits>

#include "base/error.h"
#include "kernels/cuda/fused/rotate.cuh"

namespace quarot::cuda {

constexpr int blocks_of(int size, int piece) { return (size + piece - 1) / piece; }

struct ReadInput {
  static constexpr bool kQuantizes = false;
  __device__ static void prefetch(const Rows& /*rows*/) {}
};

template <int kVectors>
struct QuantizedInput {
  static constexpr bool kQuantizes = true;

  static bool fits(const Rows& rows) {
    return rows.rotation.m == 0 && blocks_of(rows.n, kVector * kMaxRowThreads) <= kVectors;
  }
  static int scratch_bytes(const Rows& rows) { return square_bytes(rows); }
  __device__ static void prefetch(const Rows& rows) {
    if (rows.gain != nullptr) prefetch_bytes<kMaxRowThreads>(rows.gain, 4 * rows.n);
  }
  // Codes into `out`; returns their scale.
  template <typename Source>
  __device__ static float make(const Rows& rows, const Source& source, uint8_t* scratch,
                               uint8_t* out) {
    return quantize_row<float, kVectors>(rows, source, reinterpret_cast<float*>(scratch), out);
  }
};

template <int kTilesM, int kTilesN>
struct RotatedInput {
  static constexpr bool kQuantizes = true;

  static bool fits(const Rows& rows) {
    const RowRotation& r = rows.rotation;
    const int warps = blocks_of(r.m, 16 * kTilesM) * blocks_of(r.columns, 16 * kTilesN);
    return r.m > 0 && warps <= kMaxRowThreads / 32;
  }
  static int scratch_bytes(const Rows& rows) {
    return plane_bytes(rows.rotation) + square_bytes(rows);
  }
  __device__ static void prefetch(const Rows& rows) {
    if (rows.gain != nullptr) prefetch_bytes<kMaxRowThreads>(rows.gain, 4 * rows.n);
    prefetch_rotation(rows.rotation);
  }
  template <typename Source>
  __device__ static float make(const Rows& rows, const Source& source, uint8_t* scratch,
                               uint8_t* out) {
    auto* squares = reinterpret_cast<float*>(scratch + plane_bytes(rows.rotation));
    return rotate_row<float, false, kTilesM, kTilesN>(rows, source, scratch, squares, out);
  }
};

// body(std::type_identity<Input>{}) → Status, with the cheapest input that fits; kUnsupported where
// none does.
template <typename Body>
Status with_input(const Rows& rows, Body&& body) {
  std::optional<Status> done;
  const auto attempt = [&]<typename Input>(std::type_identity<Input> input) {
    if (!done && Input::fits(rows)) done = body(input);
  };
  attempt(std::type_identity<QuantizedInput<1>>{});
  attempt(std::type_identity<QuantizedInput<2>>{});
  attempt(std::type_identity<RotatedInput<1, 1>>{});
  attempt(std::type_identity<RotatedInput<2, 1>>{});
  return done.value_or(error(ErrorCode::kUnsupported, "gemm: rows of {} are too wide", rows.n));
}

}  // namespace quarot::cuda
