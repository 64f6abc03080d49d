// A warp's part of decode attention: 16 tokens at a time for up to 8 queries.
//
// Scores are the A·B of mma_f16 with 16 tokens as rows and up to 8 query heads as columns; the
// output is Vᵀ·P, 16 dims as rows. Codes enter as they are (codes.cuh); with the key's scale and
// zero a score is s = scale·(Σ q·k − zero·Σ q). The value's scale joins the exponent,
// w = 2^(s + log2 scale_v − m), so that w, rounded to float16, always uses the top of its range;
// the value's zero leaves as −Σ w·zero, and the denominator is Σ w / scale_v.
//
// Nothing is left to the compiler to contract: a sum's bits are the same wherever it is made.
// Lane (g, t) = (lane / 4, lane % 4) has tokens g and g + 8 of a tile (tile_token), and queries 2t
// and 2t + 1: a score [2 · token + query].
#pragma once

#include <algorithm>
#include <cfloat>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/codes.cuh"
#include "kernels/cuda/attention/page_ring.cuh"
#include "kernels/cuda/attention/splits.cuh"
#include "kernels/cuda/fused/half_mma.cuh"

namespace quarot::cuda {

template <int kHeadDim, int kKeyBits, int kValueBits>
struct DecodeTraits {
  static constexpr PageLayout kLayout{kHeadDim, kKeyBits, kValueBits};
  static constexpr int kGroups = kLayout.groups();
  static constexpr int kDim = kHeadDim / kGroups;  // of a group
  // A warp has its own slices, two or more under way; what the warps of kBlocks blocks hold then
  // covers the memory's latency and fits an SM, as their registers do.
  static constexpr int kBlocks = kValueBits < 16 && kHeadDim <= 128 ? 5 : 3;
  static constexpr int kSliceTokens = kLayout.block_bytes() <= 9 * 1024 ? 32 : 16;
  using Pages = Slice<kHeadDim, kKeyBits, kValueBits, kSliceTokens>;
  static constexpr int kStages = Pages::kBytes <= 5 * 512 ? 4 : 2;
  static constexpr int kRingBytes = kAttentionWarps * kStages * Pages::kBytes;
  static constexpr int kMergeBytes = kAttentionWarps * kQueryTile * kHeadDim * 4;
  static constexpr int kSharedBytes =
      std::max({kRingBytes, kMergeBytes, static_cast<int>(sizeof(MergeScratch))});
  // Behind that, where the new token is appended on the way.
  static constexpr int kQueriesAt = kSharedBytes;
  static constexpr int kNewRowAt = kQueriesAt + kQueryTile * kHeadDim * 2;
  static constexpr int kAppendBytes = kNewRowAt + kLayout.tile_bytes();
};

// The tokens of a tile that a lane has, and which of them count.
struct LaneTokens {
  int token[2];
  bool counts[2] = {true, true};

  __device__ LaneTokens() {
    const int g = threadIdx.x % 32 / 4;
    token[0] = tile_token(g);
    token[1] = 8 + tile_token(g);
  }
  // Those in [begin, end) do.
  __device__ LaneTokens(int begin, int end) : LaneTokens() {
#pragma unroll
    for (int row = 0; row < 2; ++row) counts[row] = token[row] >= begin && token[row] < end;
  }
};

// The queries of a unit, and their scores.
template <int kHeadDim, int kKeyBits, int kValueBits>
class WarpQueries {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  static constexpr int kGroups = Traits::kGroups;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kSteps = kDim / 16;
  using Pages = typename Traits::Pages;

 public:
  __device__ WarpQueries(const __half* q, int queries, float scale_log2) : scale_log2_(scale_log2) {
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      float sum = 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int dim = k * kDim + t_ * (kDim / 4) + 4 * step;
        __half value[4] = {};
        if (g_ < queries) {
          *reinterpret_cast<uint2*>(value) =
              *reinterpret_cast<const uint2*>(q + g_ * kHeadDim + dim);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sum += __half2float(value[i]);
#pragma unroll
        for (int reg = 0; reg < 2; ++reg) {
          const float factor = reg == 1 ? 1.0F / kOddFactor<kKeyBits> : 1.0F;
          queries_[k * kSteps + step][reg] =
              pack_half2(__half2float(value[unit_element<kKeyBits>(reg, 0)]) * factor,
                         __half2float(value[unit_element<kKeyBits>(reg, 1)]) * factor);
        }
      }
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      query_sum_[k][0] = __shfl_sync(~0U, sum, 8 * t_);
      query_sum_[k][1] = __shfl_sync(~0U, sum, 8 * t_ + 4);
    }
  }

  __device__ void scores(float (&s)[4], const uint8_t* tile, const LaneTokens& tokens) const {
    constexpr int kChunk = kDim / 4 * kKeyBits / 8;
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      uint32_t words[2][(kChunk + 3) / 4];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        load_words<kChunk>(words[row],
                           Pages::key_row(tile, tokens.token[row]) + (4 * k + t_) * kChunk);
      }
      float part[2][4] = {};  // two chains, half as long
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint2 low = expand_unit<kKeyBits>(words[0], step);
        const uint2 high = expand_unit<kKeyBits>(words[1], step);
        const uint32_t a[4] = {low.x, high.x, low.y, high.y};
        mma_f16(part[step % 2], a, queries_[k * kSteps + step][0], queries_[k * kSteps + step][1]);
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float scale = scale_log2_;
        float zero = 0;
        if constexpr (kKeyBits < 16) {
          const uint32_t word = Pages::key_param(tile, k, tokens.token[row]);
          scale *= __uint_as_float(word & 0xffffff00U);
          zero = static_cast<float>(word & 0xffU);
        }
#pragma unroll
        for (int query = 0; query < 2; ++query) {
          const int i = 2 * row + query;
          const float product = __fmul_rn(__fadd_rn(part[0][i], part[1][i]), kCodeUnit<kKeyBits>);
          const float score = __fmul_rn(scale, __fmaf_rn(-zero, query_sum_[k][query], product));
          s[i] = k == 0 ? score : __fadd_rn(s[i], score);
        }
      }
    }
  }

 private:
  const int g_ = threadIdx.x % 32 / 4;
  const int t_ = threadIdx.x % 4;
  float scale_log2_;
  uint32_t queries_[kGroups * kSteps][2];
  float query_sum_[kGroups][2];
};

// What the params of a lane's values say.
template <int kHeadDim, int kKeyBits, int kValueBits>
struct LaneValues {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  static constexpr int kGroups = Traits::kGroups;

  float log_scale[2] = {0, 0};
  float inverse_scale[2] = {1, 1};
  float ratio[2][kGroups];
  float zero[2][kGroups];

  __device__ LaneValues(const uint8_t* tile, const LaneTokens& tokens) {
    if constexpr (kValueBits < 16) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float top = 0;
#pragma unroll
        for (int k = 0; k < kGroups; ++k) {
          const uint32_t word = Traits::Pages::value_param(tile, k, tokens.token[row]);
          ratio[row][k] = tokens.counts[row] ? __uint_as_float(word & 0xffffff00U) : 1.0F;
          zero[row][k] = static_cast<float>(word & 0xffU);
          top = fmaxf(top, ratio[row][k]);
        }
        log_scale[row] = __log2f(top);
        inverse_scale[row] = __fdividef(1.0F, top);
      }
    }
  }
  // Scores as exponents.
  __device__ void join(const LaneTokens& tokens, float (&s)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = tokens.counts[i / 2] ? __fadd_rn(s[i], log_scale[i / 2]) : -INFINITY;
    }
  }
};

// A warp's running softmax, or one of kParts parts of it, each by a warp of its own: all of them
// have its statistics, and each has some of the dims. Lane (g, t) holds the statistics of queries
// 2t and 2t + 1 over its own tokens; the maximum is the warp's.
template <int kHeadDim, int kKeyBits, int kValueBits, int kParts = 1>
class WarpSoftmax {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  static constexpr int kGroups = Traits::kGroups;
  static constexpr int kDim = Traits::kDim;
  using Pages = typename Traits::Pages;
  using Values = LaneValues<kHeadDim, kKeyBits, kValueBits>;
  using Tiles = ValueTiles<kDim, kValueBits, kParts>;

 public:
  __device__ explicit WarpSoftmax(int part = 0) : part_(part) {}

  // A tile's tokens, by their exponents.
  __device__ void add(const float (&s)[4], const Values& values, const uint8_t* tile) {
    raise_maximum(s);
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = exp2_approx(s[i] - maximum_[i % 2]);
      float& denominator = denominator_[i % 2];
      denominator = __fmaf_rn(w[i], values.inverse_scale[i / 2], denominator);
    }
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      uint32_t p[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float share = kGroups > 1 && kValueBits < 16
                                ? values.ratio[row][k] * values.inverse_scale[row]
                                : 1.0F;
        p[row] = pack_half2(w[2 * row] * share, w[2 * row + 1] * share);
        if constexpr (kValueBits < 16) {
          const float2 rounded = unpack_half2(p[row]);
          correction_[k][0] = __fmaf_rn(rounded.x, values.zero[row][k], correction_[k][0]);
          correction_[k][1] = __fmaf_rn(rounded.y, values.zero[row][k], correction_[k][1]);
        }
        p[row] = transpose_8x8(p[row]);
      }
      add_values(k, tile, p);
    }
  }

  // Maximum and denominator [query] and the sums [query][kHeadDim] of this warp.
  __device__ void store(float2* stats, float* sums, int queries) {
#pragma unroll
    for (int query = 0; query < 2; ++query) {
      denominator_[query] = sum_over_groups(denominator_[query]);
#pragma unroll
      for (int k = 0; k < kGroups; ++k) {
        correction_[k][query] = sum_over_groups(correction_[k][query]);
      }
      const int column = 2 * t_ + query;
      if (column >= queries) continue;
      if (g_ == 0 && part_ == 0) stats[column] = {maximum_[query], denominator_[query]};
#pragma unroll
      for (int i = 0; i < kGroups * Tiles::kTiles; ++i) {
        const int k = i / Tiles::kTiles;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float unit = kCodeUnit<kValueBits> / (row == 1 ? kOddFactor<kValueBits> : 1.0F);
          sums[column * kHeadDim + k * kDim + Tiles::dim(i % Tiles::kTiles, g_, row, part_)] =
              __fmaf_rn(sums_[i][2 * row + query], unit, -correction_[k][query]);
        }
      }
    }
  }

 private:
  static __device__ float sum_over_groups(float x) {
#pragma unroll
    for (int lane = 4; lane < 32; lane *= 2) x += __shfl_xor_sync(~0U, x, lane);
    return x;
  }

  // Moves the reference of the exponents only where a score passes it by more than float16 can hold
  // with ease, which after the first tiles is rare.
  __device__ void raise_maximum(const float (&s)[4]) {
    constexpr float kSlack = 8;
    const float top[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
    const bool passed = top[0] > maximum_[0] + kSlack || top[1] > maximum_[1] + kSlack;
    if (!__any_sync(~0U, passed)) return;
#pragma unroll
    for (int query = 0; query < 2; ++query) {
      float raised = fmaxf(top[query], maximum_[query]);
#pragma unroll
      for (int lane = 4; lane < 32; lane *= 2) {
        raised = fmaxf(raised, __shfl_xor_sync(~0U, raised, lane));
      }
      const float factor = exp2_approx(maximum_[query] - raised);
      maximum_[query] = raised;
      denominator_[query] *= factor;
#pragma unroll
      for (int k = 0; k < kGroups; ++k) correction_[k][query] *= factor;
#pragma unroll
      for (int i = 0; i < kGroups * Tiles::kTiles; ++i) {
        sums_[i][query] *= factor;
        sums_[i][2 + query] *= factor;
      }
    }
  }

  __device__ void add_values(int k, const uint8_t* tile, const uint32_t (&p)[2]) {
    uint32_t words[4][Tiles::kWords];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // k-columns 2t, 2t+1, 2t+8, 2t+9
      const int token = tile_token(2 * t_ + i % 2) + i / 2 * 8;
      Tiles::load(words[i], Pages::value_row(tile, token) + k * (kDim * kValueBits / 8), g_, part_);
    }
#pragma unroll
    for (int i = 0; i < Tiles::kTiles; ++i) {
      uint32_t a[4];
      Tiles::fragment(a, words, i);
      mma_f16(sums_[k * Tiles::kTiles + i], a, p[0], p[1]);
    }
  }

  const int g_ = threadIdx.x % 32 / 4;
  const int t_ = threadIdx.x % 4;
  const int part_;
  float sums_[kGroups * Tiles::kTiles][4] = {};
  float correction_[kGroups][2] = {};
  float maximum_[2] = {-FLT_MAX / 2, -FLT_MAX / 2};
  float denominator_[2] = {0, 0};
};

// One warp's queries and their running softmax.
template <int kHeadDim, int kKeyBits, int kValueBits>
class WarpDecode {
 public:
  __device__ WarpDecode(const __half* q, int queries, float scale_log2)
      : queries_(q, queries, scale_log2) {}

  __device__ void add_tile(const uint8_t* tile, const LaneTokens& tokens) {
    float s[4];
    queries_.scores(s, tile, tokens);
    const LaneValues<kHeadDim, kKeyBits, kValueBits> values(tile, tokens);
    values.join(tokens, s);
    softmax_.add(s, values, tile);
  }
  __device__ void store(float2* stats, float* sums, int queries) {
    softmax_.store(stats, sums, queries);
  }

 private:
  WarpQueries<kHeadDim, kKeyBits, kValueBits> queries_;
  WarpSoftmax<kHeadDim, kKeyBits, kValueBits> softmax_;
};

}  // namespace quarot::cuda
