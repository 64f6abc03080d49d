// The work of rotate_and_append for the one new token of each sequence, done by the blocks that
// attend to it: a kernel less to wait for.
#pragma once

#include "kernels/cuda/attention/page_ring.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fused/heads.cuh"

namespace quarot::cuda {

__device__ __forceinline__ HeadLane head_lane(const HeadArgs& args) {
  return {static_cast<int>(threadIdx.x) % args.lanes, args.lanes, args.cache.layout.head_dim};
}
__device__ __forceinline__ LaneTurn lane_turn(const HeadArgs& args, int sequence, int position,
                                              const HeadLane& lane) {
  const int32_t* rows = args.rotary.rows;
  return {args.rotary, rows != nullptr ? rows[sequence] : position, lane};
}

// The new token's heads as they lie in memory once the kernel before has ended, and plain results.
struct StoredHeads {
  __device__ static void wait() { wait_early(); }
  __device__ static RawVector<float> load(Role role, const HeadBatch& batch, int sequence, int head,
                                          const HeadLane& lane) {
    const void* from = role == Role::kQuery ? batch.q : role == Role::kKey ? batch.k : batch.v;
    const int64_t stride = role == Role::kQuery ? batch.q_stride
                           : role == Role::kKey ? batch.k_stride
                                                : batch.v_stride;
    RawVector<float> raw{};
    if (lane.active()) {
      raw.load(static_cast<const float*>(from) + sequence * stride + head * lane.dim +
               lane.i * kVector);
    }
    return raw;
  }
  __device__ static void store(float* to, float x) { *to = x; }
  __device__ static void store(float* to, const float4& x) { *reinterpret_cast<float4*>(to) = x; }
  __device__ static void store(float2* to, const float2& x) { *to = x; }

  // The last team to come has all that the others left.
  __device__ static bool merges(unsigned* count, int splits, bool /*last_split*/, bool& is_last) {
    __threadfence();
    team_sync();
    if (team_thread() == 0) {
      is_last = atomicAdd(count, 1U) == static_cast<unsigned>(splits) - 1;
      if (is_last) *count = 0;
    }
    team_sync();
    if (is_last) __threadfence();
    return is_last;
  }
  template <typename T>
  __device__ static T fetch(const T* from) {
    return __ldcg(from);
  }
  template <typename T>
  __device__ static bool arrived(const T& /*part*/) {
    return true;
  }
};

// What a block makes of the new token of its sequence.
struct NewToken {
  int sequence;
  int position;
  int first_query;
  int queries;
  int kv_head;   // whose key and value are wanted too, or −1
  __half* q;     // [query][head_dim]
  uint8_t* row;  // a tile, its first row: codes and params of key and value
};

// The warps share out the heads: queries, as many at once as a warp holds, then the key, then the
// value.
template <typename Heads>
__device__ __forceinline__ void make_token(const HeadArgs& args, const NewToken& token,
                                           const Heads& heads) {
  const HeadBatch& batch = args.batch;
  const HeadLane lane = head_lane(args);
  const int at_once = 32 / args.lanes;
  const int mine = static_cast<int>(threadIdx.x) % 32 / args.lanes;
  const int of_queries = (token.queries + at_once - 1) / at_once;
  const int units = of_queries + (token.kv_head < 0 ? 0 : 2);
  const LaneTurn turn = lane_turn(args, token.sequence, token.position, lane);
  for (int unit = team_thread() / 32; unit < units; unit += kAttentionWarps) {
    const Role role = unit < of_queries    ? Role::kQuery
                      : unit == of_queries ? Role::kKey
                                           : Role::kValue;
    const int query = min(unit * at_once + mine, token.queries - 1);
    const int head = role == Role::kQuery ? token.first_query + query : token.kv_head;
    float x[kVector];
    heads.load(role, batch, token.sequence, head, lane).expand(x);
    if (role != Role::kValue) {
      turn_head<false>(args, role == Role::kQuery ? batch.q_gain : batch.k_gain, turn, lane, x,
                       nullptr);
    }
    if (role == Role::kQuery) {
      store_halves(lane, x, token.q + query * lane.dim);
    } else {
      append(role, args.cache, token.row, 0, token.kv_head, mine == 0, lane, x);
    }
  }
}

// The block of the cache where a token's key and value belong.
__device__ __forceinline__ uint8_t* token_block(const HeadArgs& args, int sequence, int position,
                                                int kv_head) {
  const CacheWriter& cache = args.cache;
  const int64_t page =
      cache
          .page_table[static_cast<int64_t>(sequence) * cache.table_stride + position / kPageTokens];
  return static_cast<uint8_t*>(cache.pool) +
         (page * args.batch.kv_heads + kv_head) * cache.layout.block_bytes();
}

// Row 0 of a tile becomes row `row` of a slice or of a block, by a warp.
template <typename Slice>
__device__ __forceinline__ void place_row(const uint8_t* tile, uint8_t* slice, int row) {
  constexpr PageLayout kLayout = Slice::kLayout;
  const auto copy = [&](int from, int to, int bytes) {
    for (int at = 4 * (static_cast<int>(threadIdx.x) % 32); at < bytes; at += 128) {
      *reinterpret_cast<uint32_t*>(slice + to + at) =
          *reinterpret_cast<const uint32_t*>(tile + from + at);
    }
  };
  copy(kLayout.key_row(0), kLayout.key_row(row), kLayout.key_row_bytes());
  copy(kLayout.value_row(0), kLayout.value_row(row), kLayout.value_row_bytes());
  for (int group = 0; group < kLayout.groups(); ++group) {
    const int at = 4 * kTileTokens * group;
    if (kLayout.key_groups() > 0) copy(kLayout.key_param(0) + at, kLayout.key_param(row) + at, 4);
    if (kLayout.value_groups() > 0) {
      copy(kLayout.value_param(0) + at, kLayout.value_param(row) + at, 4);
    }
  }
}

}  // namespace quarot::cuda
