#include "kernels/cuda/fused/walsh_rows.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fused/walsh_row.cuh"

namespace quarot::cuda {
namespace {

constexpr int kLeastThreads = 128;  // of a block, which takes several rows where they are short

constexpr int block_threads(int log2) { return std::max(walsh_threads(log2), kLeastThreads); }

// Blocks that a multiprocessor should hold: as many as registers allow.
constexpr int blocks(RowOperation operation, int log2) {
  return (operation == RowOperation::kNorm ? 896 : 1024) / block_threads(log2);
}

template <typename In, RowOperation kOperation, int kLog2, int kFirst>
__global__ void __launch_bounds__(block_threads(kLog2), blocks(kOperation, kLog2))
    walsh_kernel(const Rows args) {
  extern __shared__ __align__(16) float shared[];
  constexpr int kThreads = walsh_threads(kLog2);
  begin_early();
  wait_early();
  const int group = threadIdx.x / kThreads;
  const int row = blockIdx.x * (block_threads(kLog2) / kThreads) + group;
  if (row >= args.rows) return;
  constexpr bool kAlone = kThreads == block_threads(kLog2);
  const float scale = walsh_row<In, kOperation>(
      args, StoredRow{row}, FixedWalsh<kLog2, kFirst>{}, kAlone ? 0 : 1 + group,
      shared + group * walsh_bytes(kLog2) / sizeof(float), output_row(args, row));
  if (threadIdx.x % kThreads == 0) args.quant.scales[row] = scale;
}

template <typename In, RowOperation kOperation, int kLog2, int kFirst>
Status launch(const Rows& rows, cudaStream_t stream) {
  const auto kernel = walsh_kernel<In, kOperation, kLog2, kFirst>;
  constexpr int kRows = block_threads(kLog2) / walsh_threads(kLog2);
  constexpr int kShared = kRows * walsh_bytes(kLog2);
  return launch_early("fused", kernel, dim3(static_cast<unsigned>((rows.rows + kRows - 1) / kRows)),
                      block_threads(kLog2), kShared, stream, rows);
}

template <typename In, int kLog2, int kFirst>
Status launch(const Rows& rows, cudaStream_t stream) {
  switch (rows.operation) {
    case RowOperation::kNorm:
      return launch<In, RowOperation::kNorm, kLog2, kFirst>(rows, stream);
    case RowOperation::kSwiglu:
      return launch<In, RowOperation::kSwiglu, kLog2, kFirst>(rows, stream);
    default:
      return launch<In, RowOperation::kPlain, kLog2, kFirst>(rows, stream);
  }
}

template <typename In>
Status dispatch(const Rows& rows, cudaStream_t stream) {
  const RowRotation& r = rows.rotation;
  std::optional<Status> launched;
  const auto attempt = [&]<int kLog2, int kFirst>() {
    if (launched || r.log2 != kLog2 || r.first != kFirst) return;
    if constexpr (kFirst == 0) {
      launched = launch<In, kLog2, kFirst>(rows, stream);
    } else if (rows.operation == RowOperation::kPlain) {  // across heads
      launched = launch<In, RowOperation::kPlain, kLog2, kFirst>(rows, stream);
    }
  };
  attempt.template operator()<10, 0>();
  attempt.template operator()<11, 0>();
  attempt.template operator()<12, 0>();
  attempt.template operator()<13, 0>();
  attempt.template operator()<11, 6>();
  attempt.template operator()<12, 6>();
  attempt.template operator()<11, 7>();
  attempt.template operator()<12, 7>();
  attempt.template operator()<13, 7>();
  return launched.value_or(error(ErrorCode::kUnsupported,
                                 "fused: no Walsh transform of 2^{} from bit {} on behind this "
                                 "operation",
                                 r.log2, r.first));
}

}  // namespace

Status rotate_walsh_rows(const Rows& rows, cudaStream_t stream) {
  return rows.element == Element::kFloat32 ? dispatch<float>(rows, stream)
                                           : dispatch<__nv_bfloat16>(rows, stream);
}

}  // namespace quarot::cuda
