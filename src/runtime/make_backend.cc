#include "runtime/make_backend.h"

#include "base/error.h"
#include "kernels/cpu/dispatch.h"
#include "runtime/packed_backend.h"
#include "runtime/simulated_backend.h"
#ifdef QUAROT_CUDA
#include "runtime/cuda/packed_cuda_backend.h"
#include "runtime/cuda/simulated_cuda_backend.h"
#endif

namespace quarot {

namespace {

template <typename Made>
Result<std::unique_ptr<Backend>> as_backend(Result<std::unique_ptr<Made>> made) {
  if (!made.ok()) return made.error();
  return std::unique_ptr<Backend>(*std::move(made));
}

#ifdef QUAROT_CUDA
Status check_cuda() { return cuda::check_device(); }

Status check_packed_cuda(const Model& model, const Precision& precision) {
  return cuda::PackedCudaBackend::check(model, precision);
}

Result<std::unique_ptr<Backend>> make_cuda(Model model, const Precision& precision,
                                           Execution execution) {
  if (execution == Execution::kPacked) {
    return as_backend(cuda::PackedCudaBackend::create(std::move(model), precision));
  }
  dequantize(model);
  return as_backend(cuda::SimulatedCudaBackend::create(model, precision));
}
#else
Status check_cuda() {
  return error(
      ErrorCode::kUnsupported,
      "this build computes on the CPU only; build it with cmake --preset cuda, or run with "
      "--device cpu");
}

Status check_packed_cuda(const Model& /*model*/, const Precision& /*precision*/) {
  return check_cuda();
}
#endif

}  // namespace

Status check_device(Device device) { return device == Device::kCuda ? check_cuda() : Status(); }

Execution best_execution(const Model& model, const Precision& precision, Device device) {
  if (precision.needs_simulation()) return Execution::kSimulated;
  const Status packed = device == Device::kCuda ? check_packed_cuda(model, precision)
                                                : PackedBackend::check(model, precision);
  return packed.ok() ? Execution::kPacked : Execution::kSimulated;
}

Result<std::unique_ptr<Backend>> make_backend(Model model, const Precision& precision,
                                              Execution execution, Device device,
                                              const NextLayer& next_layer) {
  QUAROT_RETURN_IF_ERROR(check_device(device));
  if (precision.needs_simulation() && (execution == Execution::kPacked || device != Device::kCpu)) {
    return error(ErrorCode::kUnsupported,
                 "this recipe's quantisers are simulated on the CPU only; run it there, without "
                 "--execution packed and --device cuda");
  }
  if (execution == Execution::kAutomatic) execution = best_execution(model, precision, device);
  if (execution == Execution::kPacked && device == Device::kCpu) {
    return as_backend(PackedBackend::create(std::move(model), precision, next_layer));
  }
  QUAROT_RETURN_IF_ERROR(complete(model, next_layer));
#ifdef QUAROT_CUDA
  if (device == Device::kCuda) return make_cuda(std::move(model), precision, execution);
#endif
  if (const auto kernels = cpu::kernels(); !kernels.ok()) return kernels.error();
  auto shared = std::make_shared<const Model>(std::move(model));
  return std::unique_ptr<Backend>(std::make_unique<SimulatedBackend>(std::move(shared), precision));
}

}  // namespace quarot
