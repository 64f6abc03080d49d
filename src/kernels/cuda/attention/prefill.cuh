// Prefill attention: a block has a tile of consecutive queries of one head and walks the pages they
// see, each warp with its own 16 or 32 queries as rows of mma_f16. Where prefill_wgmma.cuh serves,
// it is not used.
//
// Codes go from the page straight into B fragments (codes.cuh), in registers; with scale and zero
// treated as in decode.cuh. The value's zeros leave through one more column of the second product,
// Σ w·zero.
#pragma once

#include <cfloat>

#include "kernels/cuda/attention/codes.cuh"
#include "kernels/cuda/attention/page_ring.cuh"
#include "kernels/cuda/attention/prefill.h"
#include "kernels/cuda/fused/half_mma.cuh"

namespace quarot::cuda {

template <int kHeadDim, int kKeyBits, int kValueBits>
struct PrefillTraits {
  static constexpr PageLayout kLayout{kHeadDim, kKeyBits, kValueBits};
  static constexpr int kGroups = kKeyBits < 16 || kValueBits < 16 ? kLayout.groups() : 1;
  static constexpr int kDim = kHeadDim / kGroups;
  using Page = Slice<kHeadDim, kKeyBits, kValueBits, kPageTokens>;
  static constexpr int kBlock = kLayout.block_bytes();
  static constexpr int kStages = 2;
  static constexpr int kRowTiles = kHeadDim > 128 ? 1 : 2;  // 16 queries each, a warp
  static constexpr int kQueries = kAttentionWarps * kRowTiles * 16;
  static constexpr int kQueryBytes = kQueries * kHeadDim * 2;
  static constexpr int kSharedBytes = kStages * kBlock + kQueryBytes;
};

// What a token's params come to.
template <int kGroups>
struct alignas(16) TokenParams {
  float key_scale[kGroups];  // with the softmax scale and log2 e
  float key_zero[kGroups];
  float value_share[kGroups];  // of the largest scale among the groups
  float value_zero[kGroups];
  float log_scale;  // log2 of that largest
  float inverse_scale;
};

template <int kHeadDim, int kKeyBits, int kValueBits>
class WarpPrefill {
  using Traits = PrefillTraits<kHeadDim, kKeyBits, kValueBits>;
  static constexpr int kGroups = Traits::kGroups;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kRowTiles = Traits::kRowTiles;
  static constexpr int kTokens = 32;  // at a time
  static constexpr int kColumnTiles = kTokens / 8;
  using Page = typename Traits::Page;
  using Tiles = ValueTiles<kDim, kValueBits>;
  static constexpr int kAllTiles = kGroups * Tiles::kTiles;
  using Params = TokenParams<kGroups>;

 public:
  // `fragments` holds this warp's queries as A fragments. Row r of the warp is query
  // min(first + r, queries − 1) of the chunk, at position position + that.
  __device__ WarpPrefill(uint4* fragments, const __half* q, int64_t stride, int first, int queries,
                         int position)
      : fragments_(fragments), first_(first), queries_(queries), position_(position) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int k = 0; k < kGroups; ++k) load_queries(q, stride, m, k);
    }
    __syncwarp();
#pragma unroll
    for (auto& maximum : maximum_) maximum[0] = maximum[1] = -FLT_MAX / 2;
  }
  __device__ int first_position() const { return position_ + min(first_, queries_ - 1); }
  __device__ int last_position() const {
    return position_ + min(first_ + 16 * kRowTiles, queries_) - 1;
  }

  // Tokens first … first + 31 of a page that starts at token `start`.
  __device__ void add_tile(const uint8_t* block, const Params* params, int first, int start,
                           int window) {
    float s[kRowTiles][kColumnTiles][4];
    scores(s, block, params, first);
    const bool whole = start + first + kTokens - 1 <= first_position() &&
                       (window == 0 || start + first > last_position() - window);
    if (!whole) mask(s, start + first, window);
    raise_maximum(s);
#pragma unroll
    for (int pair = 0; pair < kColumnTiles / 2; ++pair) add_values(s, block, params, first, pair);
  }

  // Rows of out start `stride` elements apart.
  __device__ void store(float* out, int64_t stride) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float total = denominator_[m][half];
        total += __shfl_xor_sync(~0U, total, 1);
        total += __shfl_xor_sync(~0U, total, 2);
        const float inverse = 1.0F / total;
        const int query = first_ + 16 * m + 8 * half + g_;
        if (query >= queries_) continue;
#pragma unroll
        for (int i = 0; i < kAllTiles; ++i) {
          const int k = i / Tiles::kTiles;
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const float unit = kCodeUnit<kValueBits> / (row == 1 ? kOddFactor<kValueBits> : 1.0F);
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              const int dim = k * kDim + Tiles::dim(i % Tiles::kTiles, 2 * t_ + c, row);
              const float sum = sums_[m][i][row][2 * half + c] * unit - correction_[m][k][2 * half];
              out[query * stride + dim] = sum * inverse;
            }
          }
        }
      }
    }
  }

 private:
  __device__ void load_queries(const __half* q, int64_t stride, int m, int k) {
    float sum[2] = {0, 0};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = min(first_ + 16 * m + 8 * half + g_, queries_ - 1);
        __half value[4];
        *reinterpret_cast<uint2*>(value) = *reinterpret_cast<const uint2*>(
            q + query * stride + k * kDim + t_ * (kDim / 4) + 4 * step);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[half] += __half2float(value[i]);
#pragma unroll
        for (int reg = 0; reg < 2; ++reg) {
          const float factor = reg == 1 ? 1.0F / kOddFactor<kKeyBits> : 1.0F;
          a[2 * reg + half] =
              pack_half2(__half2float(value[unit_element<kKeyBits>(reg, 0)]) * factor,
                         __half2float(value[unit_element<kKeyBits>(reg, 1)]) * factor);
        }
      }
      fragments_[((m * kGroups + k) * kSteps + step) * 32 + threadIdx.x % 32] = {a[0], a[1], a[2],
                                                                                 a[3]};
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0U, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0U, sum[half], 2);
      query_sum_[m][k][half] = sum[half] * (1.0F / kCodeUnit<kKeyBits>);
    }
  }

  // The token, in its tile of 8, of this lane's score column 0 or 1.
  __device__ int column_token(int c) const { return tile_token(2 * t_ + c); }

  __device__ void scores(float (&s)[kRowTiles][kColumnTiles][4], const uint8_t* block,
                         const Params* params, int first) const {
    constexpr int kChunk = kDim / 4 * kKeyBits / 8;
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      float product[kRowTiles][kColumnTiles][4] = {};
      uint32_t words[kColumnTiles][(kChunk + 3) / 4];
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        const uint8_t* tile = block + (first / kTileTokens + j / 2) * Page::kTile;
        load_words<kChunk>(words[j],
                           Page::key_row(tile, j % 2 * 8 + tile_token(g_)) + (4 * k + t_) * kChunk);
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          *reinterpret_cast<uint4*>(a[m]) =
              fragments_[((m * kGroups + k) * kSteps + step) * 32 + threadIdx.x % 32];
        }
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          const uint2 b = expand_unit<kKeyBits>(words[j], step);
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) mma_f16(product[m][j], a[m], b.x, b.y);
        }
      }
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const Params& p = params[first + 8 * j + column_token(c)];
          const float scale = p.key_scale[k];
          const float zero = p.key_zero[k];
          const float base = p.log_scale;
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int i = 2 * half + c;
              const float value = product[m][j][i] - zero * query_sum_[m][k][half];
              s[m][j][i] = scale * value + (k == 0 ? base : s[m][j][i]);
            }
          }
        }
      }
    }
  }

  __device__ void mask(float (&s)[kRowTiles][kColumnTiles][4], int start, int window) const {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int position = position_ + min(first_ + 16 * m + 8 * half + g_, queries_ - 1);
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int token = start + 8 * j + column_token(c);
            const bool seen = token <= position && (window == 0 || token > position - window);
            if (!seen) s[m][j][2 * half + c] = -INFINITY;
          }
        }
      }
    }
  }

  // As in decode: the exponents' reference moves only when it must.
  __device__ void raise_maximum(const float (&s)[kRowTiles][kColumnTiles][4]) {
    constexpr float kSlack = 8;
    float top[kRowTiles][2];
    bool passed = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        top[m][half] = -INFINITY;
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          top[m][half] = fmaxf(top[m][half], fmaxf(s[m][j][2 * half], s[m][j][2 * half + 1]));
        }
        passed |= top[m][half] > maximum_[m][half] + kSlack;
      }
    }
    if (!__any_sync(~0U, passed)) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float raised = fmaxf(top[m][half], maximum_[m][half]);
        raised = fmaxf(raised, __shfl_xor_sync(~0U, raised, 1));
        raised = fmaxf(raised, __shfl_xor_sync(~0U, raised, 2));
        const float factor = exp2_approx(maximum_[m][half] - raised);
        maximum_[m][half] = raised;
        denominator_[m][half] *= factor;
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
#pragma unroll
          for (int k = 0; k < kGroups; ++k) correction_[m][k][c] *= factor;
#pragma unroll
          for (int i = 0; i < kAllTiles; ++i) {
            sums_[m][i][0][c] *= factor;
            sums_[m][i][1][c] *= factor;
          }
        }
      }
    }
  }

  // Score tiles 2·pair and 2·pair + 1: 16 tokens.
  __device__ void add_values(const float (&s)[kRowTiles][kColumnTiles][4], const uint8_t* block,
                             const Params* params, int first, int pair) {
    float w[kRowTiles][2][4];
    const Params* p[2][2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        p[j][c] = &params[first + 8 * (2 * pair + j) + column_token(c)];
        const float inverse_scale = p[j][c]->inverse_scale;
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float weight = exp2_approx(s[m][2 * pair + j][2 * half + c] - maximum_[m][half]);
            denominator_[m][half] += weight * inverse_scale;
            w[m][j][2 * half + c] = weight;
          }
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float x[2] = {w[m][j][2 * half], w[m][j][2 * half + 1]};
            if constexpr (kGroups > 1) {
              x[0] *= p[j][0]->value_share[k];
              x[1] *= p[j][1]->value_share[k];
            }
            a[m][2 * j + half] = pack_half2(x[0], x[1]);
          }
        }
      }
      uint32_t words[4][Tiles::kWords];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint8_t* tile = block + (first / kTileTokens + pair) * Page::kTile;
        const int token = tile_token(2 * t_ + i % 2) + i / 2 * 8;
        Tiles::load(words[i], Page::value_row(tile, token) + k * (kDim * kValueBits / 8), g_);
      }
#pragma unroll
      for (int tile = 0; tile < Tiles::kTiles; ++tile) {
        uint32_t b[4];
        Tiles::fragment(b, words, tile);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          auto& sums = sums_[m][k * Tiles::kTiles + tile];
          mma_f16(sums[0], a[m], b[0], b[2]);
          mma_f16(sums[1], a[m], b[1], b[3]);
        }
      }
      if constexpr (kValueBits < 16) {
        const uint32_t zeros[2] = {pack_half2(p[0][0]->value_zero[k], p[0][1]->value_zero[k]),
                                   pack_half2(p[1][0]->value_zero[k], p[1][1]->value_zero[k])};
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) mma_f16(correction_[m][k], a[m], zeros[0], zeros[1]);
      }
    }
  }

  const int g_ = threadIdx.x % 32 / 4;
  const int t_ = threadIdx.x % 4;
  uint4* fragments_;
  int first_;
  int queries_;
  int position_;
  float query_sum_[kRowTiles][kGroups][2];
  float sums_[kRowTiles][kAllTiles][2][4] = {};
  float correction_[kRowTiles][kGroups][4] = {};  // every column the same
  float maximum_[kRowTiles][2];
  float denominator_[kRowTiles][2] = {};
};

// Of one token (a row of the params of a block).
template <int kHeadDim, int kKeyBits, int kValueBits>
__device__ __forceinline__ auto token_params(const uint8_t* block, int token, float scale_log2) {
  using Traits = PrefillTraits<kHeadDim, kKeyBits, kValueBits>;
  constexpr int kGroups = Traits::kGroups;
  TokenParams<kGroups> p;
  float top = kValueBits < 16 ? 0.0F : 1.0F;
  using Page = typename Traits::Page;
  const uint8_t* tile = block + token / kTileTokens * Page::kTile;
  token %= kTileTokens;
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    p.key_scale[k] = scale_log2;
    p.key_zero[k] = 0;
    if constexpr (kKeyBits < 16) {
      const uint32_t w = Page::key_param(tile, k, token);
      p.key_scale[k] *= __uint_as_float(w & 0xffffff00U) * kCodeUnit<kKeyBits>;
      p.key_zero[k] = static_cast<float>(w & 0xffU);
    }
    p.value_share[k] = 1;
    p.value_zero[k] = 0;
    if constexpr (kValueBits < 16) {
      const uint32_t w = Page::value_param(tile, k, token);
      p.value_share[k] = __uint_as_float(w & 0xffffff00U);
      p.value_zero[k] = static_cast<float>(w & 0xffU);
      top = fmaxf(top, p.value_share[k]);
    }
  }
  if (top == 0) top = 1;  // a row of the page no token has yet
  p.log_scale = __log2f(top);
  p.inverse_scale = __fdividef(1.0F, top);
#pragma unroll
  for (float& share : p.value_share) share *= p.inverse_scale;
  return p;
}

template <int kHeadDim, int kKeyBits, int kValueBits>
__global__ void __launch_bounds__(kAttentionThreads) prefill_kernel(const PrefillArgs args) {
  using Traits = PrefillTraits<kHeadDim, kKeyBits, kValueBits>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t barriers[Traits::kStages];
  __shared__ TokenParams<Traits::kGroups> params[kPageTokens];

  const int sequence = blockIdx.z;
  const int start = args.query_starts[sequence];
  const int queries = args.query_starts[sequence + 1] - start;
  // The tiles that see the most go first.
  const int tile = (gridDim.x - 1 - blockIdx.x) * Traits::kQueries;
  if (tile >= queries) return;
  const int position = args.lengths[sequence] - queries;  // of the chunk's first query
  const int head = blockIdx.y;
  const int kv_head = head / args.group;
  const int64_t stride = static_cast<int64_t>(gridDim.y) * kHeadDim;
  const int64_t offset = start * stride + static_cast<int64_t>(head) * kHeadDim;

  const int begin = args.window > 0 ? max(0, position + tile + 1 - args.window) : 0;
  const int first_page = begin / kPageTokens;
  const int last = position + min(tile + Traits::kQueries, queries) - 1;
  const int pages = last / kPageTokens - first_page + 1;
  const int32_t* page_ids =
      args.page_table + static_cast<size_t>(sequence) * args.table_stride + first_page;
  const auto block = [&](int i) -> const uint8_t* {
    if (i >= pages) return nullptr;
    return args.pool +
           (static_cast<size_t>(page_ids[i]) * args.kv_heads + kv_head) * Traits::kBlock;
  };
  SliceRing<typename Traits::Page, Traits::kStages, kAttentionThreads> ring(shared, barriers,
                                                                            threadIdx.x);
  ring.init();
  ring.meet();
  for (int i = 0; i < Traits::kStages; ++i) ring.fill(i, block(i));

  const int warp = threadIdx.x / 32;
  constexpr int kWarpFragments = Traits::kQueryBytes / kAttentionWarps / 16;
  WarpPrefill<kHeadDim, kKeyBits, kValueBits> state(
      reinterpret_cast<uint4*>(shared + Traits::kStages * Traits::kBlock) + warp * kWarpFragments,
      args.q + offset, stride, tile + warp * Traits::kRowTiles * 16, queries, position);
  for (int i = 0; i < pages; ++i) {
    const uint8_t* page = ring.wait(i);
    if (threadIdx.x < kPageTokens) {
      params[threadIdx.x] =
          token_params<kHeadDim, kKeyBits, kValueBits>(page, threadIdx.x, args.scale_log2);
    }
    __syncthreads();
    const int page_start = (first_page + i) * kPageTokens;
#pragma unroll 1
    for (int first = 0; first < kPageTokens; first += 32) {
      const bool seen =
          page_start + first <= state.last_position() &&
          (args.window == 0 || page_start + first + 31 > state.first_position() - args.window);
      if (seen) state.add_tile(page, params, first, page_start, args.window);
    }
    __syncthreads();
    ring.fill(i + Traits::kStages, block(i + Traits::kStages));
  }
  state.store(args.out + offset, stride);
}

}  // namespace quarot::cuda
