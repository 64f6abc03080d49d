// Launches the Hopper kernels: which one, its grid, and the tensor maps of its operands.
#include <algorithm>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/gemm/dispatch.cuh"
#include "kernels/cuda/gemm/launch.h"
#include "kernels/cuda/gemm/wgmma_kernel.cuh"
#include "kernels/cuda/gemm/wgmma_split_kernel.cuh"

namespace quarot::cuda {
namespace {

using namespace hopper;

constexpr int kGroupTokens = 1024;  // whose tiles run side by side, for L2's sake

using Encode = decltype(&cuTensorMapEncodeTiled);

const Result<Encode>& encode_function() {
  static const Result<Encode> function = driver_function<Encode>("cuTensorMapEncodeTiled");
  return function;
}

// A row-major matrix of `columns` elements a row, copied in boxes; beyond its edges come zeros.
Result<CUtensorMap> tensor_map(const void* data, CUtensorMapDataType type, uint64_t element_bytes,
                               uint64_t columns, uint64_t rows, uint32_t box_columns,
                               uint32_t box_rows, CUtensorMapSwizzle swizzle) {
  QUAROT_ASSIGN_OR_RETURN(const Encode encode, encode_function());
  const cuuint64_t size[] = {columns, rows};
  const cuuint64_t stride[] = {columns * element_bytes};
  const cuuint32_t box[] = {box_columns, box_rows};
  const cuuint32_t step[] = {1, 1};
  CUtensorMap map;
  const CUresult code =
      encode(&map, type, 2, const_cast<void*>(data), size, stride, box, step,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    return error(ErrorCode::kInvalidArgument, "gemm: cuTensorMapEncodeTiled: error {}",
                 static_cast<int>(code));
  }
  return map;
}

int ceil_divide(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

struct Maps {
  CUtensorMap activations;
  CUtensorMap weight;
};

// For stages of T, whose weights come `strips` at a time.
template <typename T>
Result<Maps> tensor_maps(const Gemm& p, int strips) {
  QUAROT_ASSIGN_OR_RETURN(const CUtensorMap activations,
                          tensor_map(p.activations, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, p.k, p.m,
                                     kStepColumns, T::kTokens, CU_TENSOR_MAP_SWIZZLE_128B));
  QUAROT_ASSIGN_OR_RETURN(
      const CUtensorMap weight,
      tensor_map(p.weight, CU_TENSOR_MAP_DATA_TYPE_INT64, 8, column_blocks(p.k) * kBlockBytes / 8,
                 row_blocks(p.n), kStepBlocks * kBlockBytes / 8, strips,
                 CU_TENSOR_MAP_SWIZZLE_NONE));
  return Maps{activations, weight};
}

template <typename Kernel, typename... Args>
Status launch(Kernel kernel, dim3 grid, int cluster_blocks, int shared_bytes, cudaStream_t stream,
              const Args&... args) {
  QUAROT_RETURN_IF_ERROR(
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
            "gemm (wgmma)"));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = cluster_blocks;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return check(cudaLaunchKernelEx(&config, kernel, args...), "gemm (wgmma)");
}

template <int kShare, typename Out, bool kGated>
Status launch_large(const Gemm& p, const Device& device, cudaStream_t stream) {
  using T = LargeTile;
  constexpr int kStrips = kCopyStrips<T, kShare, kGated>;
  QUAROT_ASSIGN_OR_RETURN(const Maps maps, tensor_maps<T>(p, kStrips));
  Schedule schedule{};
  schedule.channel_tiles = ceil_divide(p.n, T::kChannels);
  schedule.token_tiles = ceil_divide(p.m, kShare * T::kTokens);
  schedule.group = kGroupTokens / (kShare * T::kTokens);
  schedule.steps = ceil_divide(p.k, kStepColumns);
  schedule.apart = static_cast<int>(row_blocks(p.n) / 2);
  const dim3 grid(kShare * std::min(device.multiprocessors / kShare, schedule.tiles()));
  return launch(gemm_wgmma<kShare, Out, kGated>, grid, kShare, sizeof(LargeShared), stream,
                maps.activations, maps.weight, schedule, epilogue_of(p));
}

template <int kShare>
Status launch_large(const Gemm& p, const Device& device, cudaStream_t stream) {
  return with_output_type(p.output_type, [&]<typename Out>(std::type_identity<Out>) {
    return launch_large<kShare, Out, false>(p, device, stream);
  });
}

template <int kTokens, int kSplit>
Status launch_split(const Gemm& p, cudaStream_t stream) {
  using T = SmallTile<kTokens>;
  QUAROT_ASSIGN_OR_RETURN(const Maps maps, tensor_maps<T>(p, T::kStrips));
  const dim3 grid(kSplit * ceil_divide(p.n, T::kChannels), ceil_divide(p.m, kTokens));
  const int steps = ceil_divide(p.k, kStepColumns);
  return with_output_type(p.output_type, [&]<typename Out>(std::type_identity<Out>) {
    return launch(gemm_wgmma_split<kTokens, kSplit, Out>, grid, kSplit, sizeof(SmallShared<T>),
                  stream, maps.activations, maps.weight, steps, epilogue_of(p));
  });
}

// Cycles that tiles of these sizes take in all, roughly: waves over the machine, times the steps of
// one, each bound by the tensor cores or by what an SM draws from L2, and a tile's fixed cost.
double cost(const Gemm& p, const Device& device, int channels, int tokens, int split) {
  constexpr double kMultipliesPerCycle = 4096;  // int8, of one SM
  constexpr double kBytesPerCycle = 36;
  constexpr double kFixedCycles = 3000;
  const int steps = ceil_divide(ceil_divide(p.k, kStepColumns), split);
  const int tiles = ceil_divide(p.n, channels) * ceil_divide(p.m, tokens) * split;
  const double multiplies = double{kStepColumns} * channels * tokens;
  const double bytes = kStepColumns * (channels / 2.0 + tokens);
  const double step = std::max(multiplies / kMultipliesPerCycle, bytes / kBytesPerCycle);
  return ceil_divide(tiles, device.multiprocessors) * (steps * step + kFixedCycles);
}

using Launch = Status (*)(const Gemm&, cudaStream_t);

// The cheapest of the small tiles, or null where large ones are as cheap.
Launch small_tiles(const Gemm& p, const Device& device) {
  const struct {
    int tokens;
    int split;
    Launch launch;
  } choices[] = {{64, 1, launch_split<64, 1>},   {64, 2, launch_split<64, 2>},
                 {64, 4, launch_split<64, 4>},   {128, 1, launch_split<128, 1>},
                 {128, 2, launch_split<128, 2>}, {128, 4, launch_split<128, 4>}};
  double least = cost(p, device, LargeTile::kChannels, LargeTile::kTokens, 1);
  Launch best = nullptr;
  for (const auto& choice : choices) {
    if (choice.split > ceil_divide(p.k, kStepColumns)) continue;
    const double found = cost(p, device, SmallTile<64>::kChannels, choice.tokens, choice.split);
    if (found < least) {
      least = found;
      best = choice.launch;
    }
  }
  return best;
}

}  // namespace

bool wgmma_gates(const Gemm& p, const Device& device) {
  return p.n % LargeTile::kChannels == 0 && p.m > LargeTile::kTokens &&
         p.output_type == GemmOutput::kFloat32 && p.residual == nullptr &&
         small_tiles(p, device) == nullptr;
}

Status launch_wgmma(const Gemm& p, const Device& device, cudaStream_t stream) {
  if (p.gated) return launch_large<2, float, true>(p, device, stream);
  if (const Launch small = small_tiles(p, device)) return small(p, stream);
  return p.m > LargeTile::kTokens ? launch_large<2>(p, device, stream)
                                  : launch_large<1>(p, device, stream);
}

}  // namespace quarot::cuda
