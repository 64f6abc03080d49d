#include <optional>
#include <type_traits>

#include "base/error.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fused/column_rows.h"
#include "kernels/cuda/fused/factor_rows.h"
#include "kernels/cuda/fused/factor_stream.h"
#include "kernels/cuda/fused/rotate_cluster.cuh"
#include "kernels/cuda/fused/walsh_rows.h"

namespace quarot::cuda {
namespace {

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

Status check_rows(const Rows& r) {
  const int granule = r.quant.pack_int4 ? 32 : 16;
  if (r.rows <= 0 || r.n <= 0 || r.n % granule != 0) {
    return error(ErrorCode::kInvalidArgument,
                 "fused: {} rows of {}; expected rows and a width that is a multiple of {}", r.rows,
                 r.n, granule);
  }
  if (r.quant.bits < 2 || r.quant.bits > (r.quant.pack_int4 ? 4 : 8)) {
    return error(ErrorCode::kInvalidArgument, "fused: {} bits; expected 2 to {}", r.quant.bits,
                 r.quant.pack_int4 ? 4 : 8);
  }
  if (r.rotation.m > 0 && r.rotation.m * r.rotation.columns != r.n) {
    return error(ErrorCode::kInvalidArgument, "fused: a rotation of {} x {} for rows of {}",
                 r.rotation.m, r.rotation.columns, r.n);
  }
  return {};
}

Status too_wide(const Rows& r) {
  return error(ErrorCode::kUnsupported, "fused: rows of {} with a {} x {} rotation are too wide",
               r.n, r.rotation.m, r.rotation.columns);
}

template <typename Kernel>
Status launch(Kernel kernel, const Rows& rows, int threads, int shared, cudaStream_t stream) {
  return launch_early("fused", kernel, dim3(static_cast<unsigned>(rows.rows)), threads, shared,
                      stream, rows);
}

template <typename In, RowOperation kOperation>
Status quantize(const Rows& rows, cudaStream_t stream) {
  const int vectors = ceil_div(rows.n, kVector);
  const int squares = square_bytes(rows);
  const auto run = [&]<int kVectors>(int threads) {
    return launch(quantize_kernel<In, kOperation, kVectors>, rows, threads, squares, stream);
  };
  for (const int threads : {128, 256, kMaxRowThreads}) {
    const int each = ceil_div(vectors, threads);
    if (each <= 1) return run.template operator()<1>(ceil_div(vectors, 32) * 32);
    if (each <= 2) return run.template operator()<2>(threads);
    if (each <= 4) return run.template operator()<4>(threads);
    if (each <= 8 && threads == kMaxRowThreads) return run.template operator()<8>(threads);
  }
  return too_wide(rows);
}

template <typename In>
Status quantize(const Rows& rows, cudaStream_t stream) {
  switch (rows.operation) {
    case RowOperation::kNorm:
      return quantize<In, RowOperation::kNorm>(rows, stream);
    case RowOperation::kSwiglu:
      return quantize<In, RowOperation::kSwiglu>(rows, stream);
    default:
      return quantize<In, RowOperation::kPlain>(rows, stream);
  }
}

template <typename In, bool kExact, int kTilesM, int kTilesN>
Status launch_rotate(const Rows& rows, int warps, cudaStream_t stream) {
  const auto kernel = rotate_kernel<In, kExact, kTilesM, kTilesN>;
  const int shared = plane_bytes(rows.rotation) + square_bytes(rows);
  QUAROT_RETURN_IF_ERROR(check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "fused"));
  return launch(kernel, rows, 32 * warps, shared, stream);
}

// Whether a row is better shared out among the blocks of a cluster.
bool suits_cluster(const Rows& rows, const Device& device) {
  constexpr int kFewRows = 16;  // as many clusters as there is room for
  const RowRotation& r = rows.rotation;
  return device.capability >= 90 && rows.rows <= kFewRows && rows.element == Element::kFloat32 &&
         !rows.quant.pack_int4 && ceil_div(r.m, 16) * (r.columns / 16) <= kClusterWarps;
}

Status launch_cluster(const Rows& rows, cudaStream_t stream) {
  const auto kernel = rotate_cluster_kernel;
  const int shared = plane_bytes(rows.rotation) + square_bytes(rows);
  QUAROT_RETURN_IF_ERROR(check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "fused"));
  return launch_early("fused", kernel, dim3(static_cast<unsigned>(rows.rows * kClusterBlocks)),
                      kMaxRowThreads, shared, stream, rows, kClusterBlocks);
}

// Those that factor_rows.cu does not take, by the first of the shapes a warp's tiles can have with
// which the row needs few enough warps.
template <typename In, bool kExact>
Status rotate(const Rows& rows, cudaStream_t stream) {
  const RowRotation& r = rows.rotation;
  std::optional<Status> launched;
  const auto attempt = [&]<int kTilesM, int kTilesN>(int most_warps) {
    const int warps = ceil_div(ceil_div(r.m, 16), kTilesM) * ceil_div(r.columns / 16, kTilesN);
    if (launched || warps > most_warps) return;
    launched = launch_rotate<In, kExact, kTilesM, kTilesN>(rows, warps, stream);
  };
  attempt.template operator()<1, 1>(8);
  attempt.template operator()<2, 1>(16);
  attempt.template operator()<4, 1>(16);
  attempt.template operator()<8, 1>(16);
  return launched.value_or(too_wide(rows));
}

template <typename In>
Status dispatch(const Rows& rows, cudaStream_t stream) {
  if (rows.rotation.m == 0) return quantize<In>(rows, stream);
  if constexpr (std::is_same_v<In, __nv_bfloat16>) {
    if (rows.operation != RowOperation::kSwiglu && rows.gain == nullptr) {
      return rotate<In, true>(rows, stream);
    }
  }
  return rotate<In, false>(rows, stream);
}

}  // namespace

Status quantize_rows(const Rows& rows, cudaStream_t stream) {
  QUAROT_RETURN_IF_ERROR(check_rows(rows));
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  if (rows.rotation.log2 > 0) return rotate_walsh_rows(rows, stream);
  if (suits_columns(rows)) return rotate_column_rows(rows, stream);
  if (rows.rotation.m > 0 && suits_cluster(rows, device)) {
    return launch_cluster(rows, stream);
  }
  if (suits_factor_stream(rows, device)) return stream_factor_rows(rows, stream);
  if (suits_factor_rows(rows)) return rotate_factor_rows(rows, stream);
  return rows.element == Element::kFloat32 ? dispatch<float>(rows, stream)
                                           : dispatch<__nv_bfloat16>(rows, stream);
}

}  // namespace quarot::cuda
