// Prefill attention on Hopper: a block has a tile of consecutive queries of one head, a warpgroup
// 64 of them. Another warpgroup walks the pages they see and expands each, once for all, to float16
// in shared memory (expand.cuh), where wgmma takes it from.
//
// Scores of a page are multiplied while the weights of the page before are with its values. The
// keys' scales are the scores' factors; the values' scales enter as exponents, so that the weights
// of a row stay in float16's range, and leave from the denominator.
#pragma once

#include <cfloat>

#include "kernels/cuda/attention/expand.cuh"
#include "kernels/cuda/attention/page_ring.cuh"
#include "kernels/cuda/attention/prefill.h"
#include "kernels/cuda/attention/wgmma_f16.cuh"
#include "kernels/cuda/fused/half_mma.cuh"

namespace quarot::cuda {

inline constexpr int kPrefillConsumers = 2;  // warpgroups; the producer is the last
inline constexpr int kPrefillThreads = 128 * (1 + kPrefillConsumers);
inline constexpr int kGroupQueries = 64;  // of a warpgroup
inline constexpr int kTileQueries = kPrefillConsumers * kGroupQueries;
inline constexpr int kPlaneBytes = 128 * kPageTokens;  // 64 dims of a page's tokens

template <int kHeadDim, int kKeyBits, int kValueBits>
struct WgmmaPrefill {
  using Page = Slice<kHeadDim, kKeyBits, kValueBits, kPageTokens>;
  static constexpr int kRawStages = 2;
  static constexpr int kStages = kKeyBits == 16 || kValueBits == 16 ? 3 : 4;
  static constexpr int kOperandBytes = kHeadDim / 64 * kPlaneBytes;

  struct Shared {
    uint8_t keys[kStages][kOperandBytes];
    uint8_t values[kStages][kOperandBytes];
    uint8_t raw[kRawStages * Page::kBytes];
    float2 score[kStages][kPageTokens];   // the scores' factor, and what is added to them
    float inverse[kStages][kPageTokens];  // of the value's scale
    uint64_t arrived[kRawStages];
    uint64_t full[kStages];
    uint64_t empty[kStages];
  };
};

// The pages a tile of queries sees.
struct PageWalk {
  const uint8_t* pool;
  const int32_t* ids;
  int64_t stride;  // bytes between pages
  int first;
  int count;

  __device__ const uint8_t* block(int i) const {
    return i < count ? pool + ids[i] * stride : nullptr;
  }
};

// By the producer's 128 threads: rows of a page as an operand.
template <int kHeadDim, int kBits, typename Row, typename Param>
__device__ __forceinline__ void expand_rows(uint8_t* operand, Row&& row, Param&& param) {
  constexpr int kPieces = kHeadDim / 32;
#pragma unroll
  for (int i = 0; i < kPageTokens * kPieces / 128; ++i) {
    // Eight neighbours have four tokens and two pieces: no bank twice when units are stored.
    const int x = static_cast<int>(threadIdx.x) % 128 + 128 * i;
    const int token = x / 2 % 4 + x / (4 * kPieces) * 4;
    const int piece = x % 2 + x / 8 % (kPieces / 2) * 2;
    uint4 units[4];
    expand_piece<kBits>(row(token) + piece * 4 * kBits, param(token), units);
    uint8_t* to = operand + piece / 2 * kPlaneBytes + token * 128;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int unit = (piece % 2 * 4 + j) ^ (token % 8);
      *reinterpret_cast<uint4*>(to + 16 * unit) = units[j];
    }
  }
}

template <typename T, int kHeadDim, int kKeyBits, int kValueBits>
__device__ __forceinline__ void produce_page(typename T::Shared& shared, int stage,
                                             const uint8_t* raw, float scale_log2) {
  using Page = typename T::Page;
  const auto tile = [&](int token) { return raw + token / kTileTokens * Page::kTile; };
  const auto key_param = [&](int token) -> uint32_t {
    if constexpr (kKeyBits == 16) return 0;
    return Page::key_param(tile(token), 0, token % kTileTokens);
  };
  const auto value_param = [&](int token) -> uint32_t {
    if constexpr (kValueBits == 16) return 0;
    return Page::value_param(tile(token), 0, token % kTileTokens);
  };
  expand_rows<kHeadDim, kKeyBits>(
      shared.keys[stage],
      [&](int token) { return Page::key_row(tile(token), token % kTileTokens); }, key_param);
  expand_rows<kHeadDim, kValueBits>(
      shared.values[stage],
      [&](int token) { return Page::value_row(tile(token), token % kTileTokens); }, value_param);
  const int token = static_cast<int>(threadIdx.x) % 128;
  if (token >= kPageTokens) return;
  const auto scale_of = [](uint32_t param) { return __uint_as_float(param & 0xffffff00U); };
  const float key_scale = kKeyBits == 16 ? 1.0F : scale_of(key_param(token));
  float value_scale = kValueBits == 16 ? 1.0F : scale_of(value_param(token));
  if (value_scale == 0) value_scale = 1;  // a row of the page no token has yet
  shared.score[stage][token] = {key_scale * scale_log2, __log2f(value_scale)};
  shared.inverse[stage][token] = __fdividef(1.0F, value_scale);
}

template <typename T, int kHeadDim, int kKeyBits, int kValueBits>
__device__ __forceinline__ void produce_pages(
    typename T::Shared& shared, const PageWalk& pages, float scale_log2,
    SliceRing<typename T::Page, T::kRawStages, 128>& ring) {
  for (int i = 0; i < T::kRawStages; ++i) ring.fill(i, pages.block(i));
  for (int i = 0; i < pages.count; ++i) {
    const int stage = i % T::kStages;
    const uint8_t* raw = ring.wait(i);
    mbarrier_wait(shared_address(&shared.empty[stage]), (i / T::kStages & 1) ^ 1);
    produce_page<T, kHeadDim, kKeyBits, kValueBits>(shared, stage, raw, scale_log2);
    wgmma_proxy_fence();
    mbarrier_arrive(shared_address(&shared.full[stage]));
    barrier_sync(1, 128);
    ring.fill(i + T::kRawStages, pages.block(i + T::kRawStages));
  }
}

// A warpgroup's queries. Row r of its warp w is query min(first + 16w + r, queries − 1) of the
// chunk, at position `position` + that.
template <int kHeadDim>
class QueryGroup {
 public:
  __device__ QueryGroup(int first, int queries, int position)
      : first_(first + static_cast<int>(threadIdx.x) % 128 / 32 * 16),
        queries_(queries),
        position_(position) {}

  // Rows of q start `stride` elements apart.
  __device__ void load(const __half* q, int64_t stride) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto* row = reinterpret_cast<const uint4*>(q + query(half) * stride);
#pragma unroll
      for (int m = 0; m < kHeadDim / 32; ++m) {
        const uint4 octet = row[4 * m + t_];
        const uint32_t words[4] = {octet.x, octet.y, octet.z, octet.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) q_[2 * m + i / 2][i % 2 * 2 + half] = half_pair(words, i);
      }
    }
#pragma unroll
    for (auto& a : q_) wgmma_pin(a);
  }

  __device__ void start_scores(const uint8_t* keys) {
    const uint32_t at = shared_address(keys);
    wgmma_pin(s_);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const uint64_t b = swizzled_descriptor(at + step / 4 * kPlaneBytes + step % 4 * 32);
      wgmma_f16<false>(s_, q_[step], b, step);
    }
    wgmma_commit();
  }
  __device__ void start_values(const uint8_t* values) {
    const uint32_t at = shared_address(values);
    wgmma_pin(sums_);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kPageTokens / 16; ++step) {
      wgmma_f16<true>(sums_, p_[step], transposed_descriptor(at + step * 2048, kPlaneBytes), 1);
    }
    wgmma_commit();
  }
  __device__ void finish_scores() { wgmma_pin(s_); }
  __device__ void finish_values() { wgmma_pin(sums_); }

  // Of the scores' products, weights; the page starts at token `start`.
  __device__ void weigh(const float2* score, const float* inverse, int start, int window) {
#pragma unroll
    for (int j = 0; j < kPageTokens / 8; ++j) {
      const auto two = *reinterpret_cast<const float4*>(score + 8 * j + 2 * t_);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* s = s_ + 4 * j + 2 * half;
        s[0] = __fmaf_rn(s[0], two.x, two.y);
        s[1] = __fmaf_rn(s[1], two.z, two.w);
      }
    }
    const bool whole = start + kPageTokens - 1 <= position_ + min(first_, queries_ - 1) &&
                       (window == 0 || start > position_ + min(first_ + 15, queries_ - 1) - window);
    if (!whole) mask(start, window);
    raise_maximum();
#pragma unroll
    for (int j = 0; j < kPageTokens / 8; ++j) {
      const auto two = *reinterpret_cast<const float2*>(inverse + 8 * j + 2 * t_);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* s = s_ + 4 * j + 2 * half;
        s[0] = exp2_approx(s[0] - maximum_[half]);
        s[1] = exp2_approx(s[1] - maximum_[half]);
        denominator_[half] = __fmaf_rn(s[0], two.x, denominator_[half]);
        denominator_[half] = __fmaf_rn(s[1], two.y, denominator_[half]);
      }
    }
  }
  // The weights become the operand of start_values, the sums theirs.
  __device__ void accept_weights() {
    if (raised_) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) sums_[i] *= factor_[i / 2 % 2];
    }
#pragma unroll
    for (int step = 0; step < kPageTokens / 16; ++step) {
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) {
        p_[step][reg] = pack_half2(s_[8 * step + 2 * reg], s_[8 * step + 2 * reg + 1]);
      }
      wgmma_pin(p_[step]);
    }
  }

  // Rows of out start `stride` elements apart.
  __device__ void store(float* out, int64_t stride) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = denominator_[half];
      total += __shfl_xor_sync(~0U, total, 1);
      total += __shfl_xor_sync(~0U, total, 2);
      const float inverse = 1.0F / total;
      if (first_ + 8 * half + g_ >= queries_) continue;
      auto* row = reinterpret_cast<float4*>(out + query(half) * stride);
#pragma unroll
      for (int m = 0; m < kHeadDim / 32; ++m) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float* sum = sums_ + 16 * m + 2 * half + c;
          row[2 * (4 * m + t_) + c] = {sum[0] * inverse, sum[4] * inverse, sum[8] * inverse,
                                       sum[12] * inverse};
        }
      }
    }
  }

 private:
  __device__ int query(int half) const { return min(first_ + 8 * half + g_, queries_ - 1); }

  __device__ void mask(int start, int window) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = position_ + query(half);
#pragma unroll
      for (int j = 0; j < kPageTokens / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int token = start + 8 * j + 2 * t_ + c;
          const bool seen = token <= position && (window == 0 || token > position - window);
          if (!seen) s_[4 * j + 2 * half + c] = -INFINITY;
        }
      }
    }
  }

  // As in decode: the exponents' reference moves only when it must.
  __device__ void raise_maximum() {
    constexpr float kSlack = 8;
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kPageTokens / 2; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s_[i]);
    raised_ = __any_sync(~0U, top[0] > maximum_[0] + kSlack || top[1] > maximum_[1] + kSlack);
    if (!raised_) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float raised = fmaxf(top[half], maximum_[half]);
      raised = fmaxf(raised, __shfl_xor_sync(~0U, raised, 1));
      raised = fmaxf(raised, __shfl_xor_sync(~0U, raised, 2));
      factor_[half] = exp2_approx(maximum_[half] - raised);
      maximum_[half] = raised;
      denominator_[half] *= factor_[half];
    }
  }

  const int g_ = threadIdx.x % 32 / 4;
  const int t_ = threadIdx.x % 4;
  int first_;
  int queries_;
  int position_;
  uint32_t q_[kHeadDim / 16][4];
  float s_[kPageTokens / 2];
  uint32_t p_[kPageTokens / 16][4];
  float sums_[kHeadDim / 2] = {};
  float maximum_[2] = {-FLT_MAX / 2, -FLT_MAX / 2};
  float denominator_[2] = {};
  float factor_[2] = {1, 1};
  bool raised_ = false;
};

template <typename T, int kHeadDim>
__device__ __forceinline__ void consume_pages(typename T::Shared& shared,
                                              QueryGroup<kHeadDim>& group, const PageWalk& pages,
                                              int seen, int window) {
  const auto wait = [&](int i) {
    mbarrier_wait(shared_address(&shared.full[i % T::kStages]), i / T::kStages & 1);
  };
  const auto release = [&](int i) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared.empty[i % T::kStages]));
  };
  const auto weigh = [&](int i) {
    group.weigh(shared.score[i % T::kStages], shared.inverse[i % T::kStages],
                (pages.first + i) * kPageTokens, window);
  };
  if (seen > 0) {
    wait(0);
    group.start_scores(shared.keys[0]);
    wgmma_wait<0>();
    group.finish_scores();
    weigh(0);
    group.accept_weights();
#pragma unroll 1
    for (int i = 1; i < seen; ++i) {
      wait(i);
      group.start_scores(shared.keys[i % T::kStages]);
      group.start_values(shared.values[(i - 1) % T::kStages]);
      wgmma_wait<1>();
      group.finish_scores();
      weigh(i);
      wgmma_wait<0>();
      group.finish_values();
      release(i - 1);
      group.accept_weights();
    }
    group.start_values(shared.values[(seen - 1) % T::kStages]);
    wgmma_wait<0>();
    group.finish_values();
    release(seen - 1);
  }
  for (int i = seen; i < pages.count; ++i) {  // what only later queries see
    wait(i);
    release(i);
  }
}

template <int kHeadDim, int kKeyBits, int kValueBits>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_wgmma_kernel(const __grid_constant__ PrefillArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = WgmmaPrefill<kHeadDim, kKeyBits, kValueBits>;
  extern __shared__ __align__(1024) uint8_t bytes[];
  auto& shared = *reinterpret_cast<typename T::Shared*>(bytes);

  const int sequence = blockIdx.z;
  const int start = args.query_starts[sequence];
  const int queries = args.query_starts[sequence + 1] - start;
  // The tiles that see the most go first.
  const int tile = (gridDim.y - 1 - blockIdx.y) * kTileQueries;
  if (tile >= queries) return;
  const int position = args.lengths[sequence] - queries;  // of the chunk's first query
  const int head = blockIdx.x;

  const auto last_page = [&](int first, int count) {
    return (position + min(first + count, queries) - 1) / kPageTokens;
  };
  const int begin = args.window > 0 ? max(0, position + tile + 1 - args.window) : 0;
  PageWalk pages{};
  pages.first = begin / kPageTokens;
  pages.count = last_page(tile, kTileQueries) - pages.first + 1;
  pages.ids = args.page_table + static_cast<int64_t>(sequence) * args.table_stride + pages.first;
  constexpr int64_t kBlockBytes = T::Page::kLayout.block_bytes();
  pages.stride = args.kv_heads * kBlockBytes;
  pages.pool = args.pool + head / args.group * kBlockBytes;

  const int warpgroup = threadIdx.x / 128;
  SliceRing<typename T::Page, T::kRawStages, 128> ring(
      shared.raw, shared.arrived, static_cast<int>(threadIdx.x) - 128 * kPrefillConsumers);
  ring.init();
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      mbarrier_init(shared_address(&shared.full[i]), 128);
      mbarrier_init(shared_address(&shared.empty[i]), 4 * kPrefillConsumers);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (warpgroup == kPrefillConsumers) {
    registers_decrease<56>();
    produce_pages<T, kHeadDim, kKeyBits, kValueBits>(shared, pages, args.scale_log2, ring);
  } else {
    registers_increase<224>();
    const int64_t stride = static_cast<int64_t>(gridDim.x) * kHeadDim;
    const int64_t offset = start * stride + static_cast<int64_t>(head) * kHeadDim;
    const int first = tile + warpgroup * kGroupQueries;
    const int seen = first < queries ? last_page(first, kGroupQueries) - pages.first + 1 : 0;
    QueryGroup<kHeadDim> group(first, queries, position);
    group.load(args.q + offset, stride);
    consume_pages<T>(shared, group, pages, seen, args.window);
    group.store(args.out + offset, stride);
  }
#endif
}

}  // namespace quarot::cuda
