// The GEMM of a few tokens: its time is what reading the weights takes, so each byte is read once,
// by copies kept many deep in flight, and everything else hides behind them.
//
// The weights are one run of 512-byte blocks, strip after strip (a strip: the blocks of 16 output
// channels). Every block of threads takes an equal part of the run, wherever its ends fall, and
// every warp an equal part of that: no warp waits for another before the end. Sums of strips gather
// in shared memory; those of a strip that several blocks of threads share meet in the workspace,
// where the last one to come finishes them. Sums of integers do not depend on order. All channels
// of all tokens lie in shared memory; where they do not fit, k is cut into slices, each with blocks
// of threads of its own (blockIdx.y).
#pragma once

#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/gemm/fragment.cuh"
#include "kernels/cuda/gemm/packed.h"
#include "kernels/cuda/gemm/stream_input.cuh"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda::stream {

inline constexpr int kWarps = 16;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kPad = 16;  // bytes between tokens, against bank conflicts

// Blocks a warp has under way. Of few tokens as many as fill more than half the shared memory of a
// multiprocessor of compute capability 9 or 10: blocks of threads that come early, while what is
// before them still runs, then spread evenly, one to each.
constexpr bool has_room(int capability) { return capability >= 90 && capability < 120; }
constexpr int ring_depth(int tiles, int capability) {
  return tiles == 1 && has_room(capability) ? 16 : 8;
}
constexpr int ring_bytes(int depth) { return kWarps * depth * kBlockBytes; }

struct Operands {
  const uint8_t* activations;
  const uint8_t* weight;
  int m;
  int k;
  int strips;
  int blocks;        // of 64 columns
  int slice_blocks;  // of them in one slice, but for the last
  bool whole_strips;
  int scratch_bytes;  // what making the activations takes
  int* done;          // [strips]: blocks whose sums are in the workspace
  int32_t* sums;      // [m, n]
};

// Part `i` of `parts` equal ones of `total`: where it starts.
__device__ __forceinline__ int part(int total, int i, int parts) {
  return static_cast<int>(static_cast<int64_t>(total) * i / parts);
}

// A place in a slice's run of blocks.
struct Place {
  __device__ Place(int index, int slice_blocks)
      : strip(index / slice_blocks), block(index % slice_blocks) {}
  __device__ __forceinline__ bool advance(int slice_blocks) {  // true on entering a new strip
    if (++block < slice_blocks) return false;
    block = 0;
    ++strip;
    return true;
  }
  int strip;
  int block;
};

// What this block of threads works on.
struct Share {
  __device__ explicit Share(const Operands& in)
      : first_block(static_cast<int>(blockIdx.y) * in.slice_blocks),
        slice_blocks(min(in.slice_blocks, in.blocks - first_block)),
        begin(bound(in, slice_blocks, blockIdx.x)),
        end(bound(in, slice_blocks, blockIdx.x + 1)),
        first_strip(begin / slice_blocks),
        strips((end - 1) / slice_blocks + 1 - first_strip) {}

  __device__ static int bound(const Operands& in, int slice_blocks, int i) {
    if (in.whole_strips) return part(in.strips, i, gridDim.x) * slice_blocks;
    return part(in.strips * slice_blocks, i, gridDim.x);
  }

  // How many blocks of its i-th strip.
  __device__ __forceinline__ int covered(int i) const {
    const int start = (first_strip + i) * slice_blocks;
    return min(end, start + slice_blocks) - max(begin, start);
  }

  int first_block;
  int slice_blocks;
  int begin;  // of the slice's run
  int end;
  int first_strip;
  int strips;
};

// The copies of one warp's part. Each lane copies what it will itself read, so none waits for
// another.
class Feed {
 public:
  __device__ Feed(const Operands& in, const Share& share, int begin, int end)
      : place_(begin, share.slice_blocks),
        left_(end - begin),
        slice_blocks_(share.slice_blocks),
        policy_(evict_first_policy()),
        skip_(static_cast<int64_t>(in.blocks - share.slice_blocks) * kBlockBytes),
        from_(in.weight +
              (static_cast<int64_t>(place_.strip) * in.blocks + share.first_block + place_.block) *
                  kBlockBytes +
              threadIdx.x % 32 * 16) {}

  // Starts the next block's copy, if there is one; a group of copies is closed in any case.
  __device__ __forceinline__ void copy(uint4 (&to)[32]) {
    if (left_ > 0) {
      copy_async_16_policy(shared_address(&to[threadIdx.x % 32]), from_, policy_);
      from_ += kBlockBytes;
      if (place_.advance(slice_blocks_)) from_ += skip_;
      --left_;
    }
    copy_async_commit();
  }

 private:
  Place place_;
  int left_;
  int slice_blocks_;
  uint64_t policy_;  // L2 is for what is read again
  int64_t skip_;
  const uint8_t* from_;
};

// By plain loads: waiting for copies would be waiting for the weights that are under way.
__device__ __forceinline__ void load_activations(const Operands& in, const Share& share,
                                                 uint8_t* rows, int stride) {
  const int chunks = share.slice_blocks * kBlockColumns / 16;
#pragma unroll 4
  for (int i = threadIdx.x; i < in.m * chunks; i += kThreads) {
    const int token = i / chunks;
    const int chunk = i % chunks;
    const int column = share.first_block * kBlockColumns + chunk * 16;
    uint4 channels = {};
    if (column < in.k) {
      channels = *reinterpret_cast<const uint4*>(in.activations +
                                                 static_cast<int64_t>(token) * in.k + column);
    }
    *reinterpret_cast<uint4*>(rows + token * stride + chunk * 16) = channels;
  }
}

// What the end will need of constants, into L2: from memory it would come too late.
__device__ __forceinline__ void prefetch_scales(const Epilogue& epilogue, const Share& share) {
  constexpr int kLine = 32;  // floats
  const int channel = share.first_strip * kBlockRows + static_cast<int>(threadIdx.x) * kLine;
  if (channel >= min((share.first_strip + share.strips) * kBlockRows, epilogue.n)) return;
  if (epilogue.weight_scales != nullptr) prefetch_l2(epilogue.weight_scales + channel);
  if (epilogue.bias != nullptr) prefetch_l2(epilogue.bias + channel);
}

// Where a lane's ldmatrix rows start, and how far apart they are from block to block: tokens that
// are not there read zeros.
template <int kTiles>
struct Tokens {
  __device__ __forceinline__ Tokens(int m, const uint8_t* rows, int stride, const uint8_t* zeros) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int token = 8 * j + static_cast<int>(threadIdx.x) % 8;
      const bool valid = token < m;
      const int chunk = static_cast<int>(threadIdx.x) % 32 / 8;
      address[j] = shared_address(valid ? rows + token * stride + chunk * 16 : zeros);
      step[j] = valid ? kBlockColumns : 0;
    }
  }
  uint32_t address[kTiles];
  uint32_t step[kTiles];
};

template <int kTiles>
__device__ __forceinline__ void multiply(const uint4& words, const Tokens<kTiles>& tokens,
                                         int block, int32_t (&sums)[kTiles][4]) {
  uint32_t a[2][4];
  unpack<0>(words, a[0]);
  unpack<1>(words, a[1]);
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    uint32_t b[4];
    load_matrix_x4(b, tokens.address[j] + block * tokens.step[j]);
    mma_s8(sums[j], a[0], b[0], b[1]);
    mma_s8(sums[j], a[1], b[2], b[3]);
  }
}

// Adds a warp's sums to its strip's, [m, 16], and clears them.
template <int kTiles>
__device__ __forceinline__ void gather(int m, int32_t (&sums)[kTiles][4], int32_t* strip_sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 8 * j + lane % 4 * 2 + i % 2;
      if (token < m) {
        atomicAdd(&strip_sums[token * kBlockRows + lane / 4 + 8 * (i / 2)], sums[j][i]);
      }
      sums[j][i] = 0;
    }
  }
}

// Writes out the strips that are this block's alone and adds the others to the workspace.
template <typename Out>
__device__ __forceinline__ void finish_own(const Operands& in, const Epilogue& epilogue,
                                           const Share& share, const int32_t* strip_sums) {
  const int values = in.m * kBlockRows;
  for (int v = threadIdx.x; v < share.strips * values; v += kThreads) {
    const int i = v / values;
    const int token = v % values / kBlockRows;
    const int channel = (share.first_strip + i) * kBlockRows + v % kBlockRows;
    if (share.covered(i) == in.blocks) {
      Columns<Out, 1>(epilogue, channel).store(token, {strip_sums[v] >> kUnpackShift});
    } else if (channel < epilogue.n) {
      atomicAdd(in.sums + static_cast<int64_t>(token) * epilogue.n + channel, strip_sums[v]);
    }
  }
}

// Reports the shared strips' blocks as done and writes out those that this made complete. `last`
// has a place for each strip.
template <typename Out>
__device__ __forceinline__ void finish_shared(const Operands& in, const Epilogue& epilogue,
                                              const Share& share, int32_t* last) {
  __threadfence();
  __syncthreads();
  for (int i = threadIdx.x; i < share.strips; i += kThreads) {
    const int covered = share.covered(i);
    int* done = &in.done[share.first_strip + i];
    last[i] = covered < in.blocks && atomicAdd(done, covered) + covered == in.blocks;
    if (last[i]) *done = 0;
  }
  __syncthreads();
  __threadfence();
  const int values = in.m * kBlockRows;
  for (int v = threadIdx.x; v < share.strips * values; v += kThreads) {
    const int channel = (share.first_strip + v / values) * kBlockRows + v % kBlockRows;
    if (!last[v / values] || channel >= epilogue.n) continue;
    const int token = v % values / kBlockRows;
    int32_t* sum = in.sums + static_cast<int64_t>(token) * epilogue.n + channel;
    Columns<Out, 1>(epilogue, channel).store(token, {__ldcg(sum) >> kUnpackShift});
    *sum = 0;
  }
}

template <int kTiles, typename Out, typename Input>
__global__ void __launch_bounds__(kThreads, kTiles <= 2 ? 2 : 1)
    gemm_stream(const Operands in, Epilogue epilogue, const Rows source) {
#ifdef __CUDA_ARCH__
  constexpr int kDepth = ring_depth(kTiles, __CUDA_ARCH__ / 10);
#else
  constexpr int kDepth = 1;
#endif
  extern __shared__ __align__(16) uint8_t shared[];
  uint8_t* zeros = shared + ring_bytes(kDepth);
  uint8_t* scratch = zeros + kPad;
  uint8_t* rows = scratch + in.scratch_bytes;

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const Share share(in);
  if (share.begin == share.end) return;  // a short last slice may have fewer blocks than parts
  const int stride = share.slice_blocks * kBlockColumns + kPad;
  auto* strip_sums = reinterpret_cast<int32_t*>(rows + in.m * stride);
  int32_t* last = strip_sums + share.strips * in.m * kBlockRows;
  const int begin = share.begin + part(share.end - share.begin, warp, kWarps);
  const int end = share.begin + part(share.end - share.begin, warp + 1, kWarps);

  begin_early();
  Input::prefetch(source);
  prefetch_scales(epilogue, share);
  auto& ring = reinterpret_cast<uint4(*)[kDepth][32]>(shared)[warp];
  Feed feed(in, share, begin, end);
  for (int d = 0; d < kDepth; ++d) feed.copy(ring[d]);
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(zeros) = make_uint4(0, 0, 0, 0);
  for (int v = threadIdx.x; v < share.strips * in.m * kBlockRows; v += kThreads) {
    strip_sums[v] = 0;
  }
  wait_early();  // the weights are no one's output: only what follows must wait
  if constexpr (Input::kQuantizes) {
    __shared__ float scale;
    const float made = Input::make(source, StoredRow{0}, scratch, rows);
    if (threadIdx.x == 0) scale = made;
    epilogue.activation_scales = &scale;
  } else {
    load_activations(in, share, rows, stride);
  }
  __syncthreads();

  const Tokens<kTiles> tokens(in.m, rows, stride, zeros);
  Place place(begin, share.slice_blocks);
  int32_t sums[kTiles][4] = {};
  int slot = 0;
  for (int left = end - begin; left > 0; --left) {
    copy_async_wait<kDepth - 1>();
    multiply(ring[slot][lane], tokens, place.block, sums);
    feed.copy(ring[slot]);
    slot = (slot + 1) % kDepth;
    const int strip = place.strip - share.first_strip;
    if (place.advance(share.slice_blocks) || left == 1) {
      gather(in.m, sums, strip_sums + strip * in.m * kBlockRows);
    }
  }
  __syncthreads();
  finish_own<Out>(in, epilogue, share, strip_sums);
  const bool shared_strips =
      share.covered(0) < in.blocks || share.covered(share.strips - 1) < in.blocks;
  if (shared_strips) finish_shared<Out>(in, epilogue, share, last);
}

}  // namespace quarot::cuda::stream
