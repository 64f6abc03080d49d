#include "kernels/cuda/fused/column_rows.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fused/column_row.cuh"

namespace quarot::cuda {
namespace {

// Threads of a row, and registers of each: those that were fastest of some.
constexpr int threads_of(const ColumnShape& shape) {
  return shape.m == 12 ? 1 << (shape.log2 - 1) : 1 << shape.log2;
}
constexpr int blocks_of(const ColumnShape& shape) {
  const int registers = shape.m <= 20 ? 64 : 96;
  return 65536 / registers / threads_of(shape);
}

template <RowOperation kOperation, typename Split, int kBlocks>
__global__ void __launch_bounds__(Split::kThreads, kBlocks) column_kernel(const Rows args) {
  extern __shared__ __align__(16) float shared[];
  begin_early();
  wait_early();
  const int row = blockIdx.x;
  const float scale =
      column_row<Split, kOperation>(args, StoredRow{row}, shared, output_row(args, row));
  if (threadIdx.x == 0) args.quant.scales[row] = scale;
}

template <RowOperation kOperation, size_t kIndex>
Status launch(const Rows& rows, cudaStream_t stream) {
  constexpr ColumnShape kShape = kColumnShapes[kIndex];
  constexpr int kThreads = threads_of(kShape);
  using Split = ColumnSplit<kThreads, kShape.m, kShape.log2>;
  const auto kernel = column_kernel<kOperation, Split, blocks_of(kShape)>;
  constexpr int kShared = column_bytes<Split>();
  QUAROT_RETURN_IF_ERROR(check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared), "fused"));
  return launch_early("fused", kernel, dim3(static_cast<unsigned>(rows.rows)), kThreads, kShared,
                      stream, rows);
}

template <size_t kIndex>
Status launch(const Rows& rows, cudaStream_t stream) {
  switch (rows.operation) {
    case RowOperation::kNorm:
      return launch<RowOperation::kNorm, kIndex>(rows, stream);
    case RowOperation::kSwiglu:
      return launch<RowOperation::kSwiglu, kIndex>(rows, stream);
    default:
      return launch<RowOperation::kPlain, kIndex>(rows, stream);
  }
}

}  // namespace

Status rotate_column_rows(const Rows& rows, cudaStream_t stream) {
  std::optional<Status> launched;
  const auto attempt = [&]<size_t kIndex>() {
    constexpr ColumnShape kShape = kColumnShapes[kIndex];
    const RowRotation& r = rows.rotation;
    if (!launched && r.m == kShape.m && r.columns == 1 << kShape.log2) {
      launched = launch<kIndex>(rows, stream);
    }
  };
  const auto all = [&]<size_t... i>(std::index_sequence<i...>) {
    (attempt.template operator()<i>(), ...);
  };
  all(std::make_index_sequence<std::size(kColumnShapes)>{});
  return launched.value_or(error(ErrorCode::kUnsupported,
                                 "fused: no known factor of {} rows by {} columns", rows.rotation.m,
                                 rows.rotation.columns));
}

}  // namespace quarot::cuda
