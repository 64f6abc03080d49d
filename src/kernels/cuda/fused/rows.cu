#include <optional>
#include <type_traits>

#include "base/error.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fused/rotate.cuh"

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
Status launch(Kernel kernel, const RowArgs& args, int rows, int threads, int shared,
              cudaStream_t stream) {
  return launch_early("fused", kernel, dim3(static_cast<unsigned>(rows)), threads, shared, stream,
                      args);
}

template <typename In>
Status quantize(const RowArgs& args, const Rows& rows, cudaStream_t stream) {
  const int vectors = ceil_div(rows.n, kVector);
  for (const int threads : {128, 256, kMaxRowThreads}) {
    const int each = ceil_div(vectors, threads);
    if (each <= 1)
      return launch(quantize_kernel<In, 1>, args, rows.rows, ceil_div(vectors, 32) * 32, 0, stream);
    if (each <= 2) return launch(quantize_kernel<In, 2>, args, rows.rows, threads, 0, stream);
    if (each <= 4) return launch(quantize_kernel<In, 4>, args, rows.rows, threads, 0, stream);
    if (each <= 8 && threads == kMaxRowThreads) {
      return launch(quantize_kernel<In, 8>, args, rows.rows, threads, 0, stream);
    }
  }
  return too_wide(rows);
}

template <typename In, bool kExact, int kTilesM, int kTilesN>
Status launch_rotate(const RowArgs& args, int rows, int warps, cudaStream_t stream) {
  const RowRotation& r = args.rotation;
  const auto kernel = rotate_kernel<In, kExact, kTilesM, kTilesN>;
  const int planes = kExact && r.walsh_bits == 0 ? 1 : 2;
  const int shared = planes * ceil_div(r.m, 16) * 16 * plane_pitch(r.columns);
  QUAROT_RETURN_IF_ERROR(check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "fused"));
  return launch(kernel, args, rows, 32 * warps, shared, stream);
}

// The first of the shapes a warp's tiles can have with which the row needs few enough warps, in the
// order that measured best.
template <typename In, bool kExact>
Status rotate(const RowArgs& args, const Rows& rows, cudaStream_t stream) {
  const RowRotation& r = rows.rotation;
  std::optional<Status> launched;
  const auto attempt = [&]<int kTilesM, int kTilesN>(int most_warps) {
    const int warps = ceil_div(ceil_div(r.m, 16), kTilesM) * ceil_div(r.columns / 16, kTilesN);
    if (launched || warps > most_warps) return;
    launched = launch_rotate<In, kExact, kTilesM, kTilesN>(args, rows.rows, warps, stream);
  };
  const int tiles_m = ceil_div(r.m, 16);
  if (tiles_m <= 2) attempt.template operator()<1, 4>(8);
  if (tiles_m % 2 == 0) attempt.template operator()<2, 2>(8);
  attempt.template operator()<1, 1>(8);
  attempt.template operator()<1, 2>(8);
  attempt.template operator()<2, 1>(8);
  attempt.template operator()<3, 1>(8);
  attempt.template operator()<2, 1>(16);
  attempt.template operator()<3, 1>(16);
  attempt.template operator()<4, 1>(16);
  attempt.template operator()<5, 1>(16);
  attempt.template operator()<4, 2>(16);
  attempt.template operator()<8, 1>(16);
  return launched.value_or(too_wide(rows));
}

template <typename In>
Status dispatch(const RowArgs& args, const Rows& rows, cudaStream_t stream) {
  if (rows.rotation.m == 0) return quantize<In>(args, rows, stream);
  if constexpr (std::is_same_v<In, __nv_bfloat16>) {
    if (args.operation != RowOperation::kSwiglu && args.gain == nullptr) {
      return rotate<In, true>(args, rows, stream);
    }
  }
  return rotate<In, false>(args, rows, stream);
}

Status run(RowArgs args, const Rows& rows, cudaStream_t stream) {
  QUAROT_RETURN_IF_ERROR(check_rows(rows));
  args.n = rows.n;
  args.rotation = rows.rotation;
  args.quant = rows.quant;
  return rows.element == Element::kFloat32 ? dispatch<float>(args, rows, stream)
                                           : dispatch<__nv_bfloat16>(args, rows, stream);
}

}  // namespace

Status norm_quantize(const Rows& rows, void* x, const void* delta, const float* gain, float eps,
                     cudaStream_t stream) {
  RowArgs args{};
  args.operation = RowOperation::kNorm;
  args.x = x;
  args.second = delta;
  args.stride = rows.n;
  args.gain = gain;
  args.eps = eps;
  return run(args, rows, stream);
}

Status swiglu_quantize(const Rows& rows, const void* gate, const void* up, int64_t stride,
                       cudaStream_t stream) {
  RowArgs args{};
  args.operation = RowOperation::kSwiglu;
  args.x = const_cast<void*>(gate);
  args.second = up;
  args.stride = stride;
  return run(args, rows, stream);
}

Status rotate_quantize(const Rows& rows, const void* x, cudaStream_t stream) {
  RowArgs args{};
  args.operation = RowOperation::kPlain;
  args.x = const_cast<void*>(x);
  args.stride = rows.n;
  return run(args, rows, stream);
}

}  // namespace quarot::cuda
