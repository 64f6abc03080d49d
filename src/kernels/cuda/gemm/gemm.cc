#include "kernels/cuda/gemm/gemm.h"

#include "kernels/cuda/gemm/launch.h"

namespace quarot::cuda {
namespace {

constexpr int64_t kMaxColumns = 131072;  // sums of 16·w·a, |w| ≤ 8 and |a| ≤ 128, stay in int32
constexpr int64_t kMaxRows = int64_t{1} << 23;  // tiles of tokens fit a grid's y

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

Status check_shape(const Gemm& p) {
  const bool int4 = p.activations_type == GemmActivations::kInt4;
  const int64_t multiple = int4 ? 32 : 16;
  if (p.k <= 0 || p.k >= kMaxColumns || p.k % multiple != 0) {
    return error(ErrorCode::kInvalidArgument,
                 "gemm: k = {}; expected a multiple of {} below {}: pad the channels with zeros",
                 p.k, multiple, kMaxColumns);
  }
  if (p.m < 0 || p.m > kMaxRows || p.n < 0 || p.n > kMaxRows) {
    return error(ErrorCode::kInvalidArgument, "gemm: m = {}, n = {}; expected 0…{}", p.m, p.n,
                 kMaxRows);
  }
  return {};
}

Status check_pointers(const Gemm& p) {
  const bool scales = p.output_type != GemmOutput::kInt32 && p.rows == nullptr;
  const struct {
    const char* name;
    const void* pointer;
    bool required;
  } operands[] = {{"activations", p.activations, p.rows == nullptr},
                  {"weight", p.weight, true},
                  {"output", p.output, true},
                  {"activation_scales", p.activation_scales, scales},
                  {"weight_scales", p.weight_scales, p.output_type != GemmOutput::kInt32},
                  {"bias", p.bias, false},
                  {"residual", p.residual, false},
                  {"workspace", p.workspace, false}};
  for (const auto& operand : operands) {
    if (operand.required && operand.pointer == nullptr) {
      return error(ErrorCode::kInvalidArgument, "gemm: {} is null", operand.name);
    }
    if (!aligned(operand.pointer)) {
      return error(ErrorCode::kInvalidArgument, "gemm: {} is not aligned to 16 bytes",
                   operand.name);
    }
  }
  return {};
}

GemmPath best_path(const Gemm& p, const Device& device) {
  if (p.rows != nullptr) return GemmPath::kStream;
  if (p.activations_type == GemmActivations::kInt4) return GemmPath::kInt4Mma;
  constexpr int64_t kWgmmaRows = 17;  // from here on wgmma is the faster of the two, by measurement
  if (device.capability == 90 && p.m >= kWgmmaRows) return GemmPath::kWgmma;
  return p.m <= kStreamRows ? GemmPath::kStream : GemmPath::kInt8Mma;
}

Status check_path(const Gemm& p, const Device& device, GemmPath path) {
  if (device.capability < 80) {
    return error(ErrorCode::kUnsupported, "gemm: compute capability {}.{}; 8.0 or above is needed",
                 device.capability / 10, device.capability % 10);
  }
  if ((path == GemmPath::kInt4Mma) != (p.activations_type == GemmActivations::kInt4)) {
    return error(ErrorCode::kUnsupported,
                 "gemm: int4 activations are for the int4 mma path, int8 for every other");
  }
  if (path == GemmPath::kWgmma && device.capability != 90) {
    return error(ErrorCode::kUnsupported, "gemm: wgmma needs compute capability 9.0, not {}.{}",
                 device.capability / 10, device.capability % 10);
  }
  if (path == GemmPath::kStream && (p.m > kStreamRows || p.workspace == nullptr)) {
    return error(ErrorCode::kInvalidArgument,
                 "gemm: streaming takes up to {} tokens and a workspace; m = {}, workspace {}",
                 kStreamRows, p.m, p.workspace);
  }
  if (p.gated && (path != GemmPath::kWgmma || !wgmma_gates(p, device))) {
    return error(ErrorCode::kUnsupported,
                 "gemm: only products that gemm_gates allows are gated; m = {}, n = {}", p.m, p.n);
  }
  if (p.rows != nullptr && (path != GemmPath::kStream || p.m != 1 || p.rows->n != p.k ||
                            p.output_type != GemmOutput::kFloat32 || !gemm_quantizes(*p.rows))) {
    return error(ErrorCode::kUnsupported,
                 "gemm: only the streaming path, of one row, to float32, quantises it itself");
  }
  return {};
}

}  // namespace

Result<GemmActivations> gemm_activations(int64_t m, int64_t k) {
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  const bool int4 = device.capability / 10 == 8 && m > kStreamRows && k % 32 == 0;
  return int4 ? GemmActivations::kInt4 : GemmActivations::kInt8;
}

bool gemm_gates(const Gemm& problem) {
  const Result<Device> device = current_device();
  return device.ok() && best_path(problem, *device) == GemmPath::kWgmma &&
         wgmma_gates(problem, *device);
}

Status gemm(const Gemm& problem, cudaStream_t stream, GemmPath path) {
  QUAROT_RETURN_IF_ERROR(check_shape(problem));
  if (problem.m == 0 || problem.n == 0) return {};
  QUAROT_RETURN_IF_ERROR(check_pointers(problem));
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  if (path == GemmPath::kAutomatic) path = best_path(problem, device);
  QUAROT_RETURN_IF_ERROR(check_path(problem, device, path));
  switch (path) {
    case GemmPath::kStream:
      return launch_stream(problem, device, stream);
    case GemmPath::kWgmma:
      return launch_wgmma(problem, device, stream);
    case GemmPath::kInt4Mma:
      return launch_int4_mma(problem, stream);
    default:
      return launch_int8_mma(problem, stream);
  }
}

}  // namespace quarot::cuda
