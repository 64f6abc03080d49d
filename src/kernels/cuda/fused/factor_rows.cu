// A block has one row, [m][columns], and takes it through
//   1. load, operation and the butterflies of the index bits 0, 1, 5, 6, 7, as four neighbours and
//      their like 32 columns apart are in one thread;
//   2. those of bits 2, 3, 4, each thread with 32 neighbours, out of shared memory;
//   3. the factor's product, by tensor cores, from float16 planes that take the floats' place;
//   4. quantising.
#include "kernels/cuda/fused/factor_rows.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "kernels/cuda/fused/rotate.cuh"

namespace quarot::cuda {
namespace {

constexpr int kTilesM = 2;
constexpr int kTilesN = 2;
constexpr int kWarpColumns = 16 * kTilesN;
constexpr int kElements = 32;  // of a thread, in steps 1 and 2
constexpr int kFours = kElements / 4;
constexpr int kMostThreads = 1024;

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// How the threads share out rows of [m][2^kBits].
template <int kBits>
struct Split {
  static constexpr int kColumns = 1 << kBits;
  static constexpr int kSpread = kBits - 5;    // index bits from 5 on, all in one thread in step 1
  static constexpr int kPitch = kColumns + 4;  // of floats in shared memory
  static constexpr int kChunks = kColumns / kElements;

  int m;
  __host__ __device__ explicit Split(const RowRotation& rotation) : m(rotation.m) {}
  // In step 1 eight lanes have 32 columns, and a thread, of its fours, one in so many rows.
  __host__ __device__ int rows_apart() const {
    return (m + (kFours >> kSpread) - 1) / (kFours >> kSpread);
  }
  int threads() const {
    const int tiles = ceil_div(ceil_div(m, 16), kTilesM) * (kColumns / kWarpColumns);
    return std::max(
        {32 * tiles, ceil_div(8 * rows_apart(), 32) * 32, ceil_div(m * kChunks, 32) * 32});
  }
};

// Where a thread's fours lie in step 1: four j is in row r(j), at column + 32 · (the rest of j).
template <int kBits>
struct Fours {
  using S = Split<kBits>;
  int first;  // row of the first
  int apart;  // rows between those that are in several
  int column;
  int m;

  __device__ explicit Fours(const RowRotation& rotation)
      : first(static_cast<int>(threadIdx.x) / 8),
        apart(S(rotation).rows_apart()),
        column(static_cast<int>(threadIdx.x) % 8 * 4),
        m(rotation.m) {}
  __device__ bool active() const { return first < apart; }
  __device__ int row(int j) const { return first + (j >> S::kSpread) * apart; }
  __device__ bool has(int j) const { return active() && row(j) < m; }
  __device__ int in_row(int j) const { return column + (j & ((1 << S::kSpread) - 1)) * 32; }
  // Of what is not there, another's place.
  __device__ int element(int j) const { return min(row(j), m - 1) * S::kColumns + in_row(j); }
  __device__ int place(int j) const { return row(j) * S::kPitch + in_row(j); }
};

// As RawRow sums them: eight neighbours one after the other, which two lanes have.
template <int kBits>
__device__ __forceinline__ void store_squares(const Fours<kBits>& fours,
                                              const float (&x)[kElements], float* squares) {
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    const auto add = [&](float sum) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum = __fmaf_rn(x[4 * j + e], x[4 * j + e], sum);
      return sum;
    };
    const float sum = add(__shfl_up_sync(~0U, add(0), 1));
    if (threadIdx.x % 2 == 1 && fours.has(j)) squares[fours.element(j) / kVector] = sum;
  }
}

// A thread's elements with the operation applied, but for the norm's factor.
template <typename In, int kBits>
__device__ __forceinline__ void load_fours(const Rows& args, int row, const Fours<kBits>& fours,
                                           float (&x)[kElements], float* squares) {
  const In* from = static_cast<const In*>(args.x) + row * args.stride;
  if (args.operation == RowOperation::kSwiglu) {
    constexpr int kBatch = 4;  // under way at once, by registers
    const In* also = static_cast<const In*>(args.second) + row * args.stride;
#pragma unroll
    for (int base = 0; base < kFours; base += kBatch) {
      float up[kBatch][4];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        load_four_once(from + fours.element(base + j), x + 4 * (base + j));
        load_four_once(also + fours.element(base + j), up[j]);
      }
#pragma unroll
      for (int i = 0; i < 4 * kBatch; ++i) {
        float& to = x[4 * base + i];
        to = swiglu(to, up[i / 4][i % 4]);
      }
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kFours; ++j) load_four_once(from + fours.element(j), x + 4 * j);
  if (args.operation != RowOperation::kNorm) return;
  store_squares(fours, x, squares);
  if (args.gain == nullptr) return;
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    float gain[4];
    load_four(args.gain + fours.element(j), gain);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[4 * j + e] = __fmul_rn(x[4 * j + e], gain[e]);
  }
}

// Step 1: the row in shared memory, [m][kPitch] floats.
template <typename In, int kBits>
__device__ __forceinline__ void load_floats(const Rows& args, int row, float* floats,
                                            float* squares) {
  const RowRotation& rotation = args.rotation;
  const Fours<kBits> fours(rotation);
  if (static_cast<int>(threadIdx.x) / 32 * 4 >= fours.apart) return;  // the whole warp
  float x[kElements];
  load_fours<In>(args, row, fours, x, squares);
  if (rotation.signs != nullptr) {
#pragma unroll
    for (int j = 0; j < kFours; ++j) apply_four_signs(rotation.signs + fours.element(j), x + 4 * j);
  }
  if (rotation.walsh_bits > 0) {
    butterflies<1>(x);
    butterflies<2>(x);
    if constexpr (kBits > 5) butterflies<4>(x);
    if constexpr (kBits > 6) butterflies<8>(x);
    if constexpr (kBits > 7) butterflies<16>(x);
  }
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    if (!fours.has(j)) continue;
    *reinterpret_cast<float4*>(floats + fours.place(j)) = {x[4 * j], x[4 * j + 1], x[4 * j + 2],
                                                           x[4 * j + 3]};
  }
}

// Step 2: from floats to planes in the same place. Returns the power of two they are scaled by.
template <int kBits>
__device__ __forceinline__ float floats_to_planes(const RowRotation& rotation, uint8_t* shared) {
  using S = Split<kBits>;
  __shared__ float slots[kMostThreads / 32];
  // Neighbouring lanes have neighbouring rows: no two meet in a bank.
  const int chunk = static_cast<int>(threadIdx.x) / rotation.m;
  const int r = static_cast<int>(threadIdx.x) % rotation.m;
  const bool busy = chunk < S::kChunks;
  float x[kElements] = {};
  if (busy) {
    const float* from = reinterpret_cast<const float*>(shared) + r * S::kPitch + chunk * kElements;
#pragma unroll
    for (int j = 0; j < kFours; ++j) load_four(from + 4 * j, x + 4 * j);
    if (rotation.walsh_bits > 0) {
      butterflies<4>(x);
      butterflies<8>(x);
      butterflies<16>(x);
    }
  }
  const float range = range_scale(largest_of_block(slots, largest(x)));
  Planes<false> planes(shared, rotation.m, S::kColumns);
  planes.clear_padding(rotation.m);
  if (busy) {
    const int at = r * S::kColumns + chunk * kElements;
#pragma unroll
    for (int j = 0; j < kElements; j += kVector) {
      float y[kVector];
#pragma unroll
      for (int e = 0; e < kVector; ++e) y[e] = x[j + e] * range;
      planes.store(at + j, r, y);
    }
  }
  __syncthreads();
  return range;
}

// Step 3 where the factor is ±1: as WarpTiles does it, sum for sum, in few registers.
template <int kBits>
__device__ __forceinline__ void multiply_signs(const RowRotation& rotation,
                                               const WarpTiles<kTilesM, kTilesN>& tiles,
                                               const uint8_t* planes,
                                               float (&y)[kTilesM][kTilesN][2][4]) {
  constexpr int kPitch = plane_pitch(1 << kBits);
  const int lane = threadIdx.x % 32;
  const int groups = (tiles.tiles_m + kSignSteps - 1) / kSignSteps;
  const auto* signs = static_cast<const uint32_t*>(rotation.factor) + lane;
  int at[kTilesM];
#pragma unroll
  for (int i = 0; i < kTilesM; ++i) at[i] = tiles.m(i) * groups * 32;
  uint32_t high =
      shared_address(planes) + lane % 16 * kPitch + (tiles.first_n * 16 + lane / 16 * 8) * 2;
  const int low = tiles.tiles_m * 16 * kPitch;
  uint32_t word[kTilesM] = {};
#pragma unroll 1
  for (int step = 0; step < tiles.tiles_m; ++step) {
    if (step % kSignSteps == 0) {
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) word[i] = __ldg(signs + at[i] + step * (32 / kSignSteps));
    }
    uint32_t a[kTilesM][4];
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) a[i][r] = (word[i] << r & 0x80008000U) | kOnes;
      word[i] <<= 4;
    }
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
      for (const int plane : {0, low}) {
        uint32_t b[4];
        load_matrix_x4_transposed(b, high + plane + 32 * j);
#pragma unroll
        for (int i = 0; i < kTilesM; ++i) {
          mma_f16(y[i][j][0], a[i], b[0], b[1]);
          mma_f16(y[i][j][1], a[i], b[2], b[3]);
        }
      }
    }
    high += 16 * kPitch;
  }
}

// A row into L2, by a block.
template <typename In>
__device__ __forceinline__ void prefetch_row(const Rows& args, int row) {
  constexpr int kLine = 128 / sizeof(In);
  const int64_t first = row * args.stride;
  for (int at = kLine * threadIdx.x; at < args.n; at += kLine * blockDim.x) {
    prefetch_l2(static_cast<const In*>(args.x) + first + at);
    if (args.operation == RowOperation::kSwiglu) {
      prefetch_l2(static_cast<const In*>(args.second) + first + at);
    }
  }
}

struct FactorRows {
  Rows rows;
  int ahead;  // as many blocks as run at a time
};

template <typename In, int kBits, int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) factor_kernel(const FactorRows all) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ float slots[kMostThreads / 32];
  const Rows& args = all.rows;
  const RowRotation& rotation = args.rotation;
  begin_early();
  wait_early();
  const int row = blockIdx.x;
  auto* squares = reinterpret_cast<float*>(shared + plane_bytes(rotation));
  load_floats<In, kBits>(args, row, reinterpret_cast<float*>(shared), squares);
  __syncthreads();
  const float range = floats_to_planes<kBits>(rotation, shared);
  if (row + all.ahead < args.rows) prefetch_row<In>(args, row + all.ahead);

  const WarpTiles<kTilesM, kTilesN> tiles(rotation.m, 1 << kBits, threadIdx.x / 32);
  const bool busy = tiles.first_m < tiles.tiles_m;
  float y[kTilesM][kTilesN][2][4] = {};
  if (busy && rotation.terms == 1) {
    multiply_signs<kBits>(rotation, tiles, shared, y);
  } else if (busy) {
    tiles.multiply_terms(rotation, Planes<false>(shared, rotation.m, 1 << kBits), y);
  }
  const float scale = quantize_tiles(args, tiles, y, largest_of_block(slots, largest_of(y)),
                                     norm_factor(args, squares) * plane_unit(rotation, range),
                                     shared, output_row(args, row));
  if (threadIdx.x == 0) args.quant.scales[row] = scale;
}

template <typename In, int kBits, int kThreads, int kBlocks>
Status launch(const Rows& rows, int threads, cudaStream_t stream) {
  const auto kernel = factor_kernel<In, kBits, kThreads, kBlocks>;
  const int shared = plane_bytes(rows.rotation) + square_bytes(rows);
  QUAROT_RETURN_IF_ERROR(check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "fused"));
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  return launch_early("fused", kernel, dim3(static_cast<unsigned>(rows.rows)), threads, shared,
                      stream, {rows, kBlocks * device.multiprocessors});
}

template <typename In, int kBits>
Status launch(const Rows& rows, cudaStream_t stream) {
  const int threads = Split<kBits>(rows.rotation).threads();
  if (threads <= 256) return launch<In, kBits, 256, 4>(rows, threads, stream);
  if (threads <= 384) return launch<In, kBits, 384, 3>(rows, threads, stream);
  if (threads <= 512) return launch<In, kBits, 512, 2>(rows, threads, stream);
  return launch<In, kBits, kMostThreads, 1>(rows, threads, stream);
}

template <typename In>
Status dispatch(const Rows& rows, cudaStream_t stream) {
  switch (rows.rotation.columns) {
    case 32:
      return launch<In, 5>(rows, stream);
    case 64:
      return launch<In, 6>(rows, stream);
    case 128:
      return launch<In, 7>(rows, stream);
    default:
      return launch<In, 8>(rows, stream);
  }
}

}  // namespace

bool suits_factor_rows(const Rows& rows) {
  const RowRotation& r = rows.rotation;
  const auto columns = static_cast<unsigned>(r.columns);
  const bool walsh = r.walsh_bits == 0 || 1 << r.walsh_bits == r.columns;
  return r.m > 0 && walsh && std::has_single_bit(columns) && columns >= 32 && columns <= 256 &&
         ceil_div(r.m, 16 * kTilesM) * r.columns <= kMostThreads &&
         r.m * r.columns <= kMostThreads * kElements;
}

Status rotate_factor_rows(const Rows& rows, cudaStream_t stream) {
  return rows.element == Element::kFloat32 ? dispatch<float>(rows, stream)
                                           : dispatch<__nv_bfloat16>(rows, stream);
}

}  // namespace quarot::cuda
