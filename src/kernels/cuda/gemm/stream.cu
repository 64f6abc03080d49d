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
#include <algorithm>

#include "kernels/cuda/gemm/dispatch.cuh"
#include "kernels/cuda/gemm/fragment.cuh"
#include "kernels/cuda/gemm/launch.h"
#include "kernels/cuda/gemm/packed.h"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
constexpr int kDepth = 8;  // blocks a warp has under way
constexpr int kPad = 16;   // bytes between tokens, against bank conflicts

using Ring = uint4[kDepth][32];

struct Operands {
  const uint8_t* activations;
  const uint8_t* weight;
  int m;
  int k;
  int strips;
  int blocks;        // of 64 columns
  int slice_blocks;  // of them in one slice, but for the last
  bool whole_strips;
  int* done;      // [strips]: blocks whose sums are in the workspace
  int32_t* sums;  // [m, n]
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
        skip_(static_cast<int64_t>(in.blocks - share.slice_blocks) * kBlockBytes),
        from_(in.weight +
              (static_cast<int64_t>(place_.strip) * in.blocks + share.first_block + place_.block) *
                  kBlockBytes +
              threadIdx.x % 32 * 16) {}

  // Starts the next block's copy, if there is one; a group of copies is closed in any case.
  __device__ __forceinline__ void copy(uint4 (&to)[32]) {
    if (left_ > 0) {
      copy_async_16(shared_address(&to[threadIdx.x % 32]), from_, true);
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
  int64_t skip_;
  const uint8_t* from_;
};

__device__ __forceinline__ void load_activations(const Operands& in, const Share& share,
                                                 uint8_t* rows, int stride) {
  const int chunks = share.slice_blocks * kBlockColumns / 16;
  for (int i = threadIdx.x; i < in.m * chunks; i += kThreads) {
    const int token = i / chunks;
    const int chunk = i % chunks;
    const int column = share.first_block * kBlockColumns + chunk * 16;
    const bool valid = column < in.k;
    copy_async_16(shared_address(rows + token * stride + chunk * 16),
                  in.activations + (valid ? static_cast<int64_t>(token) * in.k + column : 0),
                  valid);
  }
  copy_async_commit();
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

template <int kTiles, typename Out>
__global__ void __launch_bounds__(kThreads, kTiles <= 2 ? 2 : 1)
    gemm_stream(const Operands in, const Epilogue epilogue) {
  extern __shared__ uint4 shared[];
  auto* rings = reinterpret_cast<Ring*>(shared);
  auto* zeros = reinterpret_cast<uint8_t*>(rings + kWarps);
  uint8_t* rows = zeros + kPad;

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const Share share(in);
  if (share.begin == share.end) return;  // a short last slice may have fewer blocks than parts
  const int stride = share.slice_blocks * kBlockColumns + kPad;
  auto* strip_sums = reinterpret_cast<int32_t*>(rows + in.m * stride);
  int32_t* last = strip_sums + share.strips * in.m * kBlockRows;
  const int begin = share.begin + part(share.end - share.begin, warp, kWarps);
  const int end = share.begin + part(share.end - share.begin, warp + 1, kWarps);

#if __CUDA_ARCH__ >= 900
  dependents_launch();
#endif
  prefetch_scales(epilogue, share);
  Ring& ring = rings[warp];
  Feed feed(in, share, begin, end);
  for (int d = 0; d < kDepth; ++d) feed.copy(ring[d]);
#if __CUDA_ARCH__ >= 900
  dependency_wait();  // the weights are no one's output: only what follows must wait
#endif
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(zeros) = make_uint4(0, 0, 0, 0);
  for (int v = threadIdx.x; v < share.strips * in.m * kBlockRows; v += kThreads) {
    strip_sums[v] = 0;
  }
  load_activations(in, share, rows, stride);
  copy_async_wait<0>();
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

struct Plan {
  int parts;   // along x
  int slices;  // along y
  int slice_blocks;
  int shared_bytes;
  bool whole_strips;
};

// Whether blocks of threads should take whole strips: they save meeting in the workspace, which
// takes about as long as reading this many bytes.
bool prefer_whole_strips(const Plan& plan, int strips) {
  constexpr int64_t kMeetingBytes = 8 << 20;
  if (plan.slices > 1) return false;
  const int most = (strips + plan.parts - 1) / plan.parts;
  const int64_t idle = static_cast<int64_t>(most) * plan.parts - strips;
  return idle * plan.slice_blocks * kBlockBytes < kMeetingBytes;
}

Plan plan(const Gemm& p, const Device& device, int slices, int waves) {
  const int strips = static_cast<int>(row_blocks(p.n));
  const int blocks = static_cast<int>(column_blocks(p.k));
  const int m = static_cast<int>(p.m);
  Plan plan{};
  plan.slice_blocks = (blocks + slices - 1) / slices;
  plan.slices = (blocks + plan.slice_blocks - 1) / plan.slice_blocks;
  const int run = strips * plan.slice_blocks;
  plan.parts = std::min(std::max(waves * device.multiprocessors / plan.slices, 1),
                        (run + kWarps - 1) / kWarps);
  if (prefer_whole_strips(plan, strips)) {
    plan.whole_strips = true;
    plan.parts = std::min(plan.parts, strips);
  }
  const int last_slice = blocks - (plan.slices - 1) * plan.slice_blocks;
  const int part = (run + plan.parts - 1) / plan.parts;
  const int most_strips = std::min(part / last_slice + 2, strips);
  plan.shared_bytes = kWarps * static_cast<int>(sizeof(Ring)) + kPad +
                      m * (plan.slice_blocks * kBlockColumns + kPad) +
                      most_strips * (m * kBlockRows + 1) * 4;
  return plan;
}

// One slice and one wave if shared memory holds all tokens' channels and the strips' sums; else the
// fewest more.
Result<Plan> plan(const Gemm& p, const Device& device) {
  for (int slices = 1; slices <= column_blocks(p.k); ++slices) {
    for (int waves = 1; waves <= 16; waves *= 2) {
      const Plan found = plan(p, device, slices, waves);
      if (found.shared_bytes <= device.shared_memory) return found;
    }
  }
  return error(ErrorCode::kUnsupported,
               "gemm (stream): {} tokens and {} channels do not fit a block's {} bytes of shared "
               "memory",
               p.m, p.n, device.shared_memory);
}

template <int kTiles>
Status launch(const Gemm& p, const Device& device, cudaStream_t stream) {
  QUAROT_ASSIGN_OR_RETURN(const Plan how, plan(p, device));
  auto* workspace = static_cast<int32_t*>(p.workspace);
  const Operands in{static_cast<const uint8_t*>(p.activations),
                    static_cast<const uint8_t*>(p.weight),
                    static_cast<int>(p.m),
                    static_cast<int>(p.k),
                    static_cast<int>(row_blocks(p.n)),
                    static_cast<int>(column_blocks(p.k)),
                    how.slice_blocks,
                    how.whole_strips,
                    workspace,
                    workspace + row_blocks(p.n)};
  return with_output_type(p.output_type, [&]<typename Out>(std::type_identity<Out>) -> Status {
    const auto kernel = gemm_stream<kTiles, Out>;
    QUAROT_RETURN_IF_ERROR(check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared_bytes),
        "gemm (stream)"));
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(how.parts, how.slices);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = how.shared_bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = device.capability >= 90 ? 1 : 0;
    return check(cudaLaunchKernelEx(&config, kernel, in, epilogue_of(p)), "gemm (stream)");
  });
}

}  // namespace

int64_t gemm_workspace_bytes(int64_t m, int64_t n) {
  return (row_blocks(n) + std::min(m, kStreamRows) * n) * int64_t{sizeof(int32_t)};
}

Status launch_stream(const Gemm& problem, const Device& device, cudaStream_t stream) {
  if (problem.m <= 8) return launch<1>(problem, device, stream);
  if (problem.m <= 16) return launch<2>(problem, device, stream);
  return launch<4>(problem, device, stream);
}

}  // namespace quarot::cuda
