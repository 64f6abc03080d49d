// A lane has sixteen elements: eight neighbours and, of the head's other half, those they turn
// with. So turning takes no exchange, and the Walsh transform only one for each of the two or three
// index bits in the middle.
#include "kernels/cuda/fused/whole_heads.h"

#include <algorithm>

#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fused/heads.cuh"

namespace quarot::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHalves = 2;
constexpr int kElements = kHalves * kVector;
constexpr int kTurns = 2;  // heads a lane works on, one after the other

template <int kDim>
struct Shape {
  static constexpr int kLanes = kDim / kElements;  // of a head
  static constexpr int kAtOnce = 32 / kLanes;      // heads of a warp
  static constexpr int kHeads = kTurns * kAtOnce;
};

// (cos, sin) of this lane's pairs.
struct PairTurns {
  float2 turn[kVector];

  __device__ PairTurns(const Rotary& rotary, int row, const HeadLane& lane) {
    const auto* pairs = reinterpret_cast<const float4*>(
        rotary.table + static_cast<int64_t>(row) * (lane.dim / 2) + lane.i * kVector);
#pragma unroll
    for (int e = 0; e < kVector; e += 2) {
      const float4 two = pairs[e / 2];
      turn[e] = {two.x, two.y};
      turn[e + 1] = {two.z, two.w};
    }
  }
  __device__ void apply(float (&x)[kElements]) const {
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const float a = x[e];
      const float b = x[kVector + e];
      x[e] = turned(a, b, {turn[e].x, -turn[e].y});
      x[kVector + e] = turned(b, a, turn[e]);
    }
  }
};

template <int kDim>
__device__ __forceinline__ void walsh_whole(float (&x)[kElements]) {
  butterflies<1>(x);
  butterflies<2>(x);
  butterflies<4>(x);
#pragma unroll
  for (int mask = 1; mask < Shape<kDim>::kLanes; mask *= 2) lane_butterflies(x, mask);
  butterflies<kVector>(x);
  const float scale = walsh_scale(kDim == 128 ? 7 : 6);
#pragma unroll
  for (float& e : x) e = __fmul_rn(e, scale);
}

template <typename In, int kDim, Role kRole>
__device__ __forceinline__ void whole_rows(const HeadArgs& args) {
  using S = Shape<kDim>;
  constexpr bool kIsQuery = kRole == Role::kQuery;
  const HeadBatch& batch = args.batch;
  const CacheWriter& cache = args.cache;
  const void* source = kIsQuery ? batch.q : kRole == Role::kKey ? batch.k : batch.v;
  const int64_t stride = kIsQuery              ? batch.q_stride
                         : kRole == Role::kKey ? batch.k_stride
                                               : batch.v_stride;
  const int heads = kIsQuery ? batch.query_heads : batch.kv_heads;
  const int warps_a_token = (heads + S::kHeads - 1) / S::kHeads;
  const int warp = static_cast<int>((blockIdx.x * kThreads + threadIdx.x) / 32);
  const int token = warp / warps_a_token;
  if (token >= batch.tokens) return;
  const HeadLane lane{static_cast<int>(threadIdx.x) % S::kLanes, S::kLanes, kDim};
  const int first = warp % warps_a_token * S::kHeads + threadIdx.x % 32 / S::kLanes;

  const In* from = static_cast<const In*>(source) + token * stride + lane.i * kVector;
  RawVector<In> raw[kTurns][kHalves];
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const In* head = from + min(first + i * S::kAtOnce, heads - 1) * kDim;
    raw[i][0].load(head);
    raw[i][1].load(head + kDim / 2);
  }
  const int position = batch.positions[token];
  const auto finish = [&](int head, float(&x)[kElements]) {
    const bool counts = head < heads;
    head = min(head, heads - 1);
    if constexpr (kIsQuery) {
      __half* out = args.q_out + (static_cast<int64_t>(token) * heads + head) * kDim;
      if (counts) store_halves(lane, x, out);
    } else {
      const int64_t page =
          cache.page_table[static_cast<int64_t>(batch.sequences[token]) * cache.table_stride +
                           position / kPageTokens];
      uint8_t* block = static_cast<uint8_t*>(cache.pool) +
                       (page * batch.kv_heads + head) * cache.layout.block_bytes();
      append(kRole, cache, block, position % kPageTokens, head, counts, lane, x);
    }
  };
  float x[kTurns][kElements];
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    raw[i][0].expand(reinterpret_cast<float(&)[kVector]>(x[i][0]));
    raw[i][1].expand(reinterpret_cast<float(&)[kVector]>(x[i][kVector]));
  }
  if constexpr (kRole != Role::kValue) {
    const int32_t* rows = args.rotary.rows;
    const PairTurns turns(args.rotary, rows != nullptr ? rows[token] : position, lane);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      turns.apply(x[i]);
      if (args.rotation.m == 1) walsh_whole<kDim>(x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kTurns; ++i) finish(first + i * S::kAtOnce, x[i]);
}

template <typename In, int kDim>
__global__ void __launch_bounds__(kThreads, 8) whole_heads_kernel(const HeadArgs args) {
  begin_early();
  wait_early();
  switch (blockIdx.y) {
    case 0:
      return whole_rows<In, kDim, Role::kQuery>(args);
    case 1:
      return whole_rows<In, kDim, Role::kKey>(args);
    default:
      return whole_rows<In, kDim, Role::kValue>(args);
  }
}

template <typename In, int kDim>
Status launch(const HeadArgs& args, cudaStream_t stream) {
  constexpr int kHeads = Shape<kDim>::kHeads;
  constexpr int kWarps = kThreads / 32;
  const int heads = std::max(args.batch.query_heads, args.batch.kv_heads);
  const int64_t warps = static_cast<int64_t>(args.batch.tokens) * ((heads + kHeads - 1) / kHeads);
  const dim3 grid(static_cast<unsigned>((warps + kWarps - 1) / kWarps), 3);  // q, k, v
  return launch_early("rotate_and_append", whole_heads_kernel<In, kDim>, grid, kThreads, 0, stream,
                      args);
}

template <typename In>
Status launch(const HeadArgs& args, cudaStream_t stream) {
  return args.cache.layout.head_dim == 128 ? launch<In, 128>(args, stream)
                                           : launch<In, 64>(args, stream);
}

}  // namespace

bool whole_heads(const HeadBatch& batch, const Rotary& rotary, const HeadRotation& rotation,
                 const CacheWriter& cache) {
  const int d = cache.layout.head_dim;
  return (d == 64 || d == 128) && rotary.dims == d && !rotary.interleaved && rotation.m <= 1 &&
         batch.q_gain == nullptr && batch.k_gain == nullptr;
}

Status rotate_whole_heads(const HeadBatch& batch, const Rotary& rotary,
                          const HeadRotation& rotation, const CacheWriter& cache, __half* q_out,
                          cudaStream_t stream) {
  const HeadArgs args = head_args(batch, rotary, rotation, cache, q_out);
  return batch.element == Element::kFloat32 ? launch<float>(args, stream)
                                            : launch<__nv_bfloat16>(args, stream);
}

}  // namespace quarot::cuda
