// The product of float rows with a table of integers. Its time is what reading the table takes: a
// warp takes a tile of 16 rows at a time and reads its words as they lie, once, a batch ahead of
// what it multiplies; everything else hides behind that.
//
// It multiplies by float16 tensor-core instructions, exact: an integer is a float16, and a float of
// x two whose sum it is, columns 2i and 2i+1 of the other operand, that add up in one lane at the
// end. The order of a sum's terms is the instruction's to choose as long as both operands agree, so
// a word's elements go where decoding leaves them; and so are the rows of a tile: rows 2g and 2g+1,
// neighbours in memory, are the instruction's g and g+8.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fused/half_terms.cuh"

namespace quarot::cuda::table {

inline constexpr int kTileRows = 16;
inline constexpr int kWarps = 16;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kChunkWords = 4;  // of each row of a tile, as many as a row has lanes
inline constexpr int kBatch = 8;       // chunks that a warp reads at once, of all its tiles

struct Task {
  const uint32_t* words;
  const float* scales;
  const float* x;  // [tokens, cols]
  float* y;        // [tokens, rows]
  int tokens;
  int rows;
  int cols;
  int row_words;
  int tiles;
  int chunks;        // of a tile
  int slice_chunks;  // whose columns of x are in shared memory at a time: a multiple of kBatch
};

// The elements of x that a word of the table meets, in pairs, as decode() leaves the word's.
template <int kBits>
using Fields = std::conditional_t<kBits == 8, uint2, uint4>;

// A warp's share: kTiles neighbouring tiles at a time, their batches of chunks one after another.
template <int kTiles>
class Feed {
 public:
  static constexpr int kChunks = kBatch / kTiles;  // of each tile

  __device__ explicit Feed(const Task& t)
      : group_(static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x)),
        tile_words_(static_cast<int64_t>(t.row_words) * kTileRows) {
    place(t);
  }
  __device__ __forceinline__ void load(const Task& t, uint2 (&words)[kTiles][kChunks]) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const uint32_t* from = from_ + j * tile_words_;
      if (chunk_ + kChunks <= end_[j]) {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) words[j][i] = load_once_8(from + i * kChunkElements);
      } else {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
          words[j][i] = {};
          if (chunk_ + i < end_[j]) words[j][i] = load_once_8(from + i * kChunkElements);
        }
      }
    }
    from_ += kChunks * kChunkElements;
    chunk_ += kChunks;
    if (chunk_ < t.chunks) return;
    group_ += static_cast<int>(kWarps * gridDim.x);
    place(t);
  }

 private:
  static constexpr int kChunkElements = kChunkWords * kTileRows;

  __device__ __forceinline__ void place(const Task& t) {
    const int lane = threadIdx.x % 32;
    from_ = t.words + kTiles * group_ * tile_words_ + lane % 4 * kTileRows + lane / 4 * 2;
    chunk_ = 0;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) end_[j] = kTiles * group_ + j < t.tiles ? t.chunks : 0;
  }
  int group_;
  int64_t tile_words_;
  int chunk_;
  int end_[kTiles];
  const uint32_t* from_;
};

// (word & mask) | bits
__device__ __forceinline__ uint32_t select_or(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
}

// A word's integers less than their offset, as pairs of float16.
__device__ __forceinline__ void decode(uint32_t word, uint32_t (&pairs)[2]) {
  const __half2 offset = __float2half2_rn(1024 + 128);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t biased = __byte_perm(word, 0x64646464U, i == 0 ? 0x4140 : 0x4342);
    const __half2 pair = __hsub2(reinterpret_cast<const __half2&>(biased), offset);
    pairs[i] = reinterpret_cast<const uint32_t&>(pair);
  }
}
// Of 4 bits: fields 0 and 4, 1 and 5, 2 and 6, 3 and 7.
__device__ __forceinline__ void decode(uint32_t word, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t fields = i < 2 ? word : word >> 8;
    const uint32_t biased = select_or(fields, i % 2 == 0 ? 0x000f000fU : 0x00f000f0U, 0x64006400U);
    const auto& half = reinterpret_cast<const __half2&>(biased);  // 1024 + the field, or 16 · that
    const __half2 pair =
        i % 2 == 0 ? __hsub2(half, __float2half2_rn(1024 + 8))
                   : __hfma2(half, __float2half2_rn(1.0F / 16), __float2half2_rn(-64 - 8));
    pairs[i] = reinterpret_cast<const uint32_t&>(pair);
  }
}

// Elements column, column + 1, … of a row of x; zeros outside of it.
template <int kCount>
__device__ __forceinline__ void read(const Task& t, int token, int column, float (&v)[kCount]) {
  const float* row = t.x + static_cast<int64_t>(token) * t.cols + column;
  if (token < t.tokens && column + kCount <= t.cols && t.cols % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(row + i);
      v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = token < t.tokens && column + i < t.cols ? row[i] : 0.0F;
}

// to [chunk][column][4] ← what lanes t = 0 … 3 multiply the words of a chunk by: of `count` chunks
// from `first` on, zeros behind the row. In the order in which they lie, several at a time, so that
// as many reads are under way.
template <int kBits, int kColumnTiles>
__device__ __forceinline__ void stage(const Task& t, int first, int count, Fields<kBits>* to) {
  constexpr int kPerWord = 32 / kBits;
  constexpr int kPairs = kPerWord / 2;
  constexpr int kTokens = 4 * kColumnTiles;
  constexpr int kAtOnce = kBits / 2;
  for (int begin = threadIdx.x; begin < kTokens * kChunkWords * count;
       begin += kAtOnce * kThreads) {
    float v[kAtOnce][kPerWord];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int i = begin + u * kThreads;
      const int token = i / kChunkWords % kTokens;
      const int word = i / (kChunkWords * kTokens) * kChunkWords + i % kChunkWords;
      read(t, token, (first * kChunkWords + word) * kPerWord, v[u]);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      uint32_t high[kPairs];
      uint32_t low[kPairs];
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        split(kBits == 8 ? v[u][2 * p] : v[u][p], kBits == 8 ? v[u][2 * p + 1] : v[u][p + kPairs],
              high[p], low[p]);
      }
      const int i = begin + u * kThreads;
      if (i >= kTokens * kChunkWords * count) break;
      Fields<kBits>* at = to + i / kChunkWords * 2 * kChunkWords + i % kChunkWords;
      at[0] = reinterpret_cast<const Fields<kBits>&>(high);
      at[kChunkWords] = reinterpret_cast<const Fields<kBits>&>(low);
    }
  }
}

// A chunk of kTiles tiles.
template <int kBits, int kTiles, int kColumnTiles>
__device__ __forceinline__ void multiply_chunk(const uint2 (&words)[kTiles], const Fields<kBits>* x,
                                               float (&sums)[kTiles][kColumnTiles][4]) {
  constexpr int kPairs = 16 / kBits;
  uint32_t even[kTiles][kPairs];  // rows 2g
  uint32_t odd[kTiles][kPairs];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    decode(words[i].x, even[i]);
    decode(words[i].y, odd[i]);
  }
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
    const Fields<kBits> fields = x[j * 8 * kChunkWords + threadIdx.x % 32];
    const auto& b = reinterpret_cast<const uint32_t(&)[kPairs]>(fields);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int p = 0; p < kPairs; p += 2) {
        mma_f16(sums[i][j], {even[i][p], odd[i][p], even[i][p + 1], odd[i][p + 1]}, b[p], b[p + 1]);
      }
    }
  }
}

// The scales of the two rows of a tile that a lane has.
__device__ __forceinline__ float2 scales_of(const Task& t, int tile) {
  const int row = tile * kTileRows + static_cast<int>(threadIdx.x) % 32 / 4 * 2;
  return tile < t.tiles ? *reinterpret_cast<const float2*>(t.scales + row) : float2{};
}

// Writes a tile's outputs and clears its sums.
template <int kColumnTiles>
__device__ __forceinline__ void finish(const Task& t, int tile, float2 scale,
                                       float (&sums)[kColumnTiles][4]) {
  const int lane = threadIdx.x % 32;
  const int row = tile * kTileRows + lane / 4 * 2;
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
    const int token = 4 * j + lane % 4;
    float* y = t.y + static_cast<int64_t>(token) * t.rows + row;
    if (token < t.tokens && row < t.rows) y[0] = scale.x * (sums[j][0] + sums[j][1]);
    if (token < t.tokens && row + 1 < t.rows) y[1] = scale.y * (sums[j][2] + sums[j][3]);
#pragma unroll
    for (float& sum : sums[j]) sum = 0;
  }
}

template <int kBits, int kTiles, int kColumnTiles>
__global__ void __launch_bounds__(kThreads, 1) multiply_table(const Task t) {
  constexpr int kChunks = Feed<kTiles>::kChunks;
  constexpr int kChunkFields = 8 * kColumnTiles * kChunkWords;
  extern __shared__ __align__(16) uint8_t shared[];
  auto* x = reinterpret_cast<Fields<kBits>*>(shared);
  begin_early();
  Feed<kTiles> feed(t);
  uint2 one[kTiles][kChunks];
  uint2 other[kTiles][kChunks];
  feed.load(t, one);
  feed.load(t, other);

  const int stride = static_cast<int>(kWarps * gridDim.x);
  int tile = kTiles * static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x);
  int first = 0;  // chunk of the batch
  int slice = 0;  // its first chunk
  bool staged = false;
  float sums[kTiles][kColumnTiles][4] = {};

  // Every warp of the block takes the same steps, with a tile or without: they share x.
  const auto step = [&](const uint2(&words)[kTiles][kChunks]) {
    if (first == slice && !staged) {
      __syncthreads();
      stage<kBits, kColumnTiles>(t, first, t.slice_chunks, x);
      staged = t.slice_chunks >= t.chunks;
      __syncthreads();
    }
    const bool last = first + kChunks >= t.chunks;
    float2 scales[kTiles];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) scales[j] = last ? scales_of(t, tile + j) : float2{};
    if (tile < t.tiles) {
      const Fields<kBits>* at = x + (first - slice) * kChunkFields;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        uint2 chunk[kTiles];
#pragma unroll
        for (int j = 0; j < kTiles; ++j) chunk[j] = words[j][i];
        multiply_chunk<kBits>(chunk, at + i * kChunkFields, sums);
      }
    }
    first += kChunks;
    if (first == slice + t.slice_chunks) slice = first;
    if (!last) return;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) finish(t, tile + j, scales[j], sums[j]);
    tile += kTiles * stride;
    first = slice = 0;
  };

  wait_early();  // the table is no one's output: only what follows must wait
  const int groups = (t.tiles + kTiles - 1) / kTiles;
  const int rounds = (groups - static_cast<int>(blockIdx.x) + stride - 1) / stride;
  for (int left = rounds * ((t.chunks + kChunks - 1) / kChunks); left > 0; left -= 2) {
    step(one);
    feed.load(t, one);
    if (left == 1) break;
    step(other);
    feed.load(t, other);
  }
}

}  // namespace quarot::cuda::table
