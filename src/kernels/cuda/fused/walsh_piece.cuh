// Step 1 of factor_stream.cu: pieces of a row on their way into the planes.
#pragma once

#include "kernels/cuda/attention/wgmma_f16.cuh"
#include "kernels/cuda/fused/factor_plan.cuh"
#include "kernels/cuda/fused/piece_ring.cuh"

namespace quarot::cuda::factor {

// Where the elements of a lane lie in its warp's piece, in bytes, by fours. At first eight lanes
// have a line of 128 bytes, and a lane's fours are in eight lines; then they change places, and a
// lane has a line. On the way a line's fours are out of order, so that neither way two lanes meet
// in a bank.
template <int kBits>
struct Place {
  static_assert(kBits == 7 || kBits == 8);
  static constexpr unsigned kLines = (1 << kBits) / 32;  // of a row
  unsigned lane;
  unsigned first;  // where the first four is
  unsigned kept;   // where that is put
  unsigned taken;  // where the first of the lane's line is then

  __device__ Place(const Rows&, unsigned lane) : lane(lane) {
    const unsigned group = lane / 8;
    first = group * kLines * 128 + lane % 8 * 16;
    kept = group * kLines * 128 + (lane % 8 ^ group) * 16;
    const unsigned order = kBits == 8 ? row() + part() % 2 * 4 : row();
    taken = (row() * kLines + part()) * 128 + order * 16;
  }
  __device__ static unsigned apart(int j) {
    return kBits == 8 ? j * 128 : j % 4 * 128 + j / 4 * 2048;
  }
  __device__ unsigned four(int j) const { return first + apart(j); }
  __device__ unsigned keep(int j) const {
    const bool swapped = kBits == 8 ? j % 2 == 1 : j >= 4;
    return (swapped ? kept ^ 64 : kept) + apart(j);
  }
  __device__ unsigned take(int j) const { return taken ^ j * 16; }
  // Afterwards: row of the piece, and which 32 of its columns.
  __device__ unsigned row() const { return kBits == 8 ? lane % 4 : lane % 8; }
  __device__ unsigned part() const { return kBits == 8 ? lane / 4 : lane / 8; }
};
// A lane has a line from the start, but takes its fours in the order j ^ turn, as their banks want
// it.
struct TurnedPlace {
  unsigned lane;
  unsigned turn;  // even for a norm: a pair of fours is a pair of neighbours

  __device__ TurnedPlace(const Rows& rows, unsigned lane)
      : lane(lane),
        turn(rows.rotation.walsh_bits == 0           ? 0
             : rows.operation == RowOperation::kNorm ? lane & 6
                                                     : lane & 7) {}
};
template <>
struct Place<6> : TurnedPlace {
  using TurnedPlace::TurnedPlace;
  __device__ unsigned four(int j) const {
    return (row() * 256 + part() * 128 + turn * 16) ^ j * 16;
  }
  __device__ unsigned row() const { return lane % 8 + lane / 16 * 8; }
  __device__ unsigned part() const { return lane / 8 % 2; }
};
template <>
struct Place<5> : TurnedPlace {
  using TurnedPlace::TurnedPlace;
  __device__ unsigned four(int j) const { return (lane * 128 + turn * 16) ^ j * 16; }
  __device__ unsigned row() const { return lane; }
  __device__ unsigned part() const { return 0; }
};

// The squares of eight neighbours, one after the other as RawRow sums them.
__device__ __forceinline__ float add_squares(const float* x, float sum) {
#pragma unroll
  for (int e = 0; e < 4; ++e) sum = __fmaf_rn(x[e], x[e], sum);
  return sum;
}

// A lane's elements of a piece that begins at element `first` of the row, with the operation
// applied, but for the norm's factor.
template <typename Ring, int kBits>
__device__ __forceinline__ void take_piece(const Rows& args, const uint8_t* piece, int first,
                                           const Place<kBits>& place, float (&x)[kElements],
                                           float* squares) {
  constexpr RowOperation kOperation = Ring::kOperation;
  const auto take = [](const uint8_t* from, float* to) {
    load_four(reinterpret_cast<const float*>(from), to);
  };
  const auto element = [&](int j) { return first + static_cast<int>(place.four(j) / 4); };
  const auto there = [&](int j) { return min(element(j), args.n - 4); };
#pragma unroll
  for (int j = 0; j < kFours; ++j) take(piece + place.four(j), x + 4 * j);
  if constexpr (kOperation == RowOperation::kSwiglu) {
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      float up[4];
      take(piece + Ring::kInputBytes + place.four(j), up);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[4 * j + e] = swiglu(x[4 * j + e], up[e]);
    }
  }
  if constexpr (kOperation == RowOperation::kNorm) {
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      if constexpr (kBits <= 6) {
        if (j % 2 == 1) continue;
        const float sum = add_squares(x + 4 * j + 4, add_squares(x + 4 * j, 0));
        if (element(j) < args.n) squares[element(j) / kVector] = sum;
      } else {
        const float below = __shfl_up_sync(~0U, add_squares(x + 4 * j, 0), 1);
        const float sum = add_squares(x + 4 * j, below);
        if (place.lane % 2 == 1 && element(j) < args.n) squares[element(j) / kVector] = sum;
      }
    }
    if (args.gain != nullptr) {
#pragma unroll
      for (int j = 0; j < kFours; ++j) {
        float gain[4];
        load_four(args.gain + there(j), gain);
#pragma unroll
        for (int e = 0; e < 4; ++e) x[4 * j + e] = __fmul_rn(x[4 * j + e], gain[e]);
      }
    }
  }
  if (args.rotation.signs != nullptr) {
#pragma unroll
    for (int j = 0; j < kFours; ++j) apply_four_signs(args.rotation.signs + there(j), x + 4 * j);
  }
}

// The Walsh transform of a piece's rows; a lane's elements are neighbours then.
template <typename Ring, int kBits>
__device__ __forceinline__ void walsh_piece(const Rows& args, uint8_t* piece, int first,
                                            const Place<kBits>& place, float (&x)[kElements],
                                            float* squares) {
  take_piece<Ring, kBits>(args, piece, first, place, x, squares);
  const bool walsh = args.rotation.walsh_bits > 0;
  if (walsh) {
    butterflies<1>(x);
    butterflies<2>(x);
  }
  if constexpr (kBits == 6) {
    if (walsh) lane_butterflies(x, 8);
  } else if constexpr (kBits > 6) {
    if (walsh) {
      butterflies<4>(x);
      butterflies<8>(x);
      if constexpr (kBits == 8) butterflies<16>(x);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      *reinterpret_cast<float4*>(piece + place.keep(j)) = {x[4 * j], x[4 * j + 1], x[4 * j + 2],
                                                           x[4 * j + 3]};
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      load_four(reinterpret_cast<const float*>(piece + place.take(j)), x + 4 * j);
    }
  }
  if (walsh) {
    butterflies<4>(x);
    butterflies<8>(x);
    butterflies<16>(x);
  }
}

// The transform of fours in the order j ^ turn is that of fours in order, but for the sign of four
// j where j & turn has an odd number of bits.
__device__ __forceinline__ float turned(float x, int four, unsigned turn) {
  uint32_t sign = 0;
#pragma unroll
  for (int bit = 0; bit < 3; ++bit) {
    if ((four >> bit & 1) != 0) sign ^= turn << (31 - bit);
  }
  return __uint_as_float(__float_as_uint(x) ^ (sign & 0x80000000U));
}

template <int kBits>
__device__ __forceinline__ void store_planes(const Plan& plan, uint8_t* planes, unsigned first,
                                             const Place<kBits>& place, float range,
                                             const float (&x)[kElements]) {
  const unsigned row = first + place.row();
  const unsigned part = place.part();
  uint8_t* high = planes + part / 2 * plan.panel_bytes() + row * (kBits == 5 ? 64 : 128);
  uint8_t* low = high + plan.plane_bytes();
  const unsigned at = kBits == 5 ? narrow_chunk_of(row, 0) : chunk_of(row, part % 2 * 4);
#pragma unroll
  for (int chunk = 0; chunk < kElements / kVector; ++chunk) {
    uint32_t h[4];
    uint32_t l[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int four = 2 * chunk + i / 2;
      float scale = range;
      if constexpr (kBits <= 6) scale = turned(range, four, place.turn);
      split(x[8 * chunk + 2 * i] * scale, x[8 * chunk + 2 * i + 1] * scale, h[i], l[i]);
    }
    *reinterpret_cast<uint4*>(high + (at ^ chunk * 16)) = {h[0], h[1], h[2], h[3]};
    *reinterpret_cast<uint4*>(low + (at ^ chunk * 16)) = {l[0], l[1], l[2], l[3]};
  }
}

// Row `row` into the group's planes, by each warp its part. Returns the power of two that they are
// scaled by.
template <typename Ring, int kBits>
__device__ __forceinline__ float fill_planes(const Plan& plan, const Ring& ring,
                                             PieceTurn<Ring>& turn, const Member& at, unsigned row,
                                             uint8_t* planes, float* squares) {
  __shared__ float tops[kMostWarps];
  float range;
  if (at.warp < plan.pieces) {
    const Place<kBits> place(plan.rows, forgotten_lane());
    const unsigned first = at.warp * (kPiece >> kBits);  // row of the factor's
    float x[kElements];
    walsh_piece<Ring, kBits>(plan.rows, turn.wait(ring), at.warp * kPiece, place, x, squares);
    if constexpr (kBits > 6) wgmma_proxy_fence();  // floats were kept where copies come next
    __syncwarp();
    if (place.lane == 0) turn.refill(ring, row);
    turn.advance(ring);
    const bool has = first + place.row() < static_cast<unsigned>(plan.rows.rotation.m);
    range = range_scale(at.largest(tops, has ? largest_of(x) : 0));
    if (has) store_planes<kBits>(plan, planes, first, place, range, x);
    wgmma_proxy_fence();
  } else {
    range = range_scale(at.largest(tops, 0));
  }
  return range;
}

}  // namespace quarot::cuda::factor
