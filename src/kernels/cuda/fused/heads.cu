#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fused/heads.cuh"
#include "kernels/cuda/fused/whole_heads.h"

namespace quarot::cuda {
namespace {

constexpr int kThreads = 128;

// A warp has 32 / lanes neighbouring heads of one token at a time, kTurns times over; lanes past
// the last head do its work once more and keep it. kGeneral: the rotation is not a plain Walsh one.
template <typename In, int kTurns, bool kGeneral, Role kRole>
__device__ void head_rows(const HeadArgs& args, float* scratch) {
  const HeadBatch& batch = args.batch;
  const CacheWriter& cache = args.cache;
  constexpr bool kIsQuery = kRole == Role::kQuery;
  const void* source = kIsQuery ? batch.q : kRole == Role::kKey ? batch.k : batch.v;
  const int64_t stride = kIsQuery              ? batch.q_stride
                         : kRole == Role::kKey ? batch.k_stride
                                               : batch.v_stride;
  const int heads = kIsQuery ? batch.query_heads : batch.kv_heads;
  const int at_once = 32 / args.lanes;
  const int warps_a_token = (heads + at_once * kTurns - 1) / (at_once * kTurns);
  const int warp = static_cast<int>((blockIdx.x * kThreads + threadIdx.x) / 32);
  const int token = warp / warps_a_token;
  if (token >= batch.tokens) return;
  HeadLane lane{};
  lane.lanes = args.lanes;
  lane.i = threadIdx.x % args.lanes;
  lane.dim = cache.layout.head_dim;
  const int first = warp % warps_a_token * at_once * kTurns + threadIdx.x % 32 / args.lanes;

  const In* from = static_cast<const In*>(source) + token * stride + lane.i * kVector;
  RawVector<In> raw[kTurns];
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    raw[i] = {};
    if (lane.active()) raw[i].load(from + min(first + i * at_once, heads - 1) * lane.dim);
  }
  const int position = batch.positions[token];
  uint8_t* blocks = nullptr;
  if constexpr (!kIsQuery) {
    const int64_t page =
        cache.page_table[static_cast<int64_t>(batch.sequences[token]) * cache.table_stride +
                         position / kPageTokens];
    blocks = static_cast<uint8_t*>(cache.pool) + page * batch.kv_heads * cache.layout.block_bytes();
  }
  const auto finish = [&](int head, float(&x)[kVector]) {
    const bool counts = head < heads;
    head = min(head, heads - 1);
    if constexpr (kIsQuery) {
      __half* out = args.q_out + (static_cast<int64_t>(token) * heads + head) * lane.dim;
      if (counts) store_halves(lane, x, out);
    } else {
      append(kRole, cache, blocks + static_cast<int64_t>(head) * cache.layout.block_bytes(),
             position % kPageTokens, head, counts, lane, x);
    }
  };
  if constexpr (kRole == Role::kValue) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      float x[kVector];
      raw[i].expand(x);
      finish(first + i * at_once, x);
    }
  } else {
    const int32_t* rows = args.rotary.rows;
    const LaneTurn turn(args.rotary, rows != nullptr ? rows[token] : position, lane);
    const float* gain = kIsQuery ? batch.q_gain : batch.k_gain;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      float x[kVector];
      raw[i].expand(x);
      turn_head<kGeneral>(args, gain, turn, lane, x, scratch);
      finish(first + i * at_once, x);
    }
  }
}

template <typename In, int kTurns, bool kGeneral>
__global__ void __launch_bounds__(kThreads) heads_kernel(const HeadArgs args) {
  __shared__ float scratch[kGeneral ? kThreads * kVector : 1];
  begin_early();
  wait_early();
  float* mine = scratch + (kGeneral ? threadIdx.x / args.lanes * args.lanes * kVector : 0);
  switch (blockIdx.y) {
    case 0:
      return head_rows<In, kTurns, kGeneral, Role::kQuery>(args, mine);
    case 1:
      return head_rows<In, kTurns, kGeneral, Role::kKey>(args, mine);
    default:
      return head_rows<In, kTurns, kGeneral, Role::kValue>(args, mine);
  }
}

template <typename In, int kTurns, bool kGeneral>
Status launch(const HeadArgs& args, cudaStream_t stream) {
  const int a_warp = 32 / args.lanes * kTurns;
  const int heads = std::max(args.batch.query_heads, args.batch.kv_heads);
  const int64_t warps = static_cast<int64_t>(args.batch.tokens) * ((heads + a_warp - 1) / a_warp);
  constexpr int kWarps = kThreads / 32;
  const dim3 grid(static_cast<unsigned>((warps + kWarps - 1) / kWarps), 3);  // q, k, v
  return launch_early("rotate_and_append", heads_kernel<In, kTurns, kGeneral>, grid, kThreads, 0,
                      stream, args);
}

}  // namespace

Status check_heads(const HeadBatch& batch, const Rotary& rotary, const HeadRotation& rotation,
                   const CacheWriter& cache) {
  const int d = cache.layout.head_dim;
  if (d <= 0 || d % 16 != 0 || d > 256 || (d > 128 && d != 256)) {
    return error(ErrorCode::kUnsupported,
                 "heads: head_dim {}; expected a multiple of 16 up to 128, or 256", d);
  }
  if (rotary.dims % 16 != 0 || rotary.dims > d) {
    return error(ErrorCode::kUnsupported,
                 "heads: {} rotary dims of {}; expected a multiple of 16, at most the head_dim",
                 rotary.dims, d);
  }
  if (rotation.m > 0 && rotation.m << rotation.log2 != d) {
    return error(ErrorCode::kInvalidArgument, "heads: a rotation of {} x 2^{} for a head_dim of {}",
                 rotation.m, rotation.log2, d);
  }
  if (batch.tokens <= 0 || stored_bits(cache.key_bits) != cache.layout.key_bits ||
      stored_bits(cache.value_bits) != cache.layout.value_bits) {
    return error(ErrorCode::kInvalidArgument,
                 "heads: {} tokens, keys of {} bits stored in {}, values of {} in {}; expected at "
                 "least one token and the bits stored_bits gives",
                 batch.tokens, cache.key_bits, cache.layout.key_bits, cache.value_bits,
                 cache.layout.value_bits);
  }
  return {};
}

Status rotate_and_append(const HeadBatch& batch, const Rotary& rotary, const HeadRotation& rotation,
                         const CacheWriter& cache, __half* q_out, cudaStream_t stream) {
  QUAROT_RETURN_IF_ERROR(check_heads(batch, rotary, rotation, cache));
  constexpr int kManyTokens = 128;  // from here on a warp's turns of cosines serve several heads
  if (batch.tokens >= kManyTokens && whole_heads(batch, rotary, rotation, cache)) {
    return rotate_whole_heads(batch, rotary, rotation, cache, q_out, stream);
  }
  const HeadArgs args = head_args(batch, rotary, rotation, cache, q_out);
  constexpr int kTurns = 4;
  const bool is_float = batch.element == Element::kFloat32;
  if (rotation.m > 1) {
    return is_float ? launch<float, 1, true>(args, stream)
                    : launch<__nv_bfloat16, 1, true>(args, stream);
  }
  const bool many = batch.tokens >= kManyTokens;
  if (is_float)
    return many ? launch<float, kTurns, false>(args, stream)
                : launch<float, 1, false>(args, stream);
  return many ? launch<__nv_bfloat16, kTurns, false>(args, stream)
              : launch<__nv_bfloat16, 1, false>(args, stream);
}

}  // namespace quarot::cuda
