#include "runtime/make_backend.h"

#include "base/error.h"
#include "base/memory.h"
#include "kernels/cpu/dispatch.h"
#include "model/synthetic.h"
#include "runtime/cpu_layer_stream.h"
#include "runtime/packed_backend.h"
#include "runtime/simulated_backend.h"
#ifdef QUAROT_CUDA
#include "runtime/cuda/cuda_layer_stream.h"
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
                                           Execution execution, const NextLayer& next_layer) {
  if (execution == Execution::kPacked) {
    return as_backend(cuda::PackedCudaBackend::create(std::move(model), precision, next_layer));
  }
  QUAROT_RETURN_IF_ERROR(complete(model, next_layer));
  dequantize(model);
  return as_backend(cuda::SimulatedCudaBackend::create(model, precision));
}

Status check_synthetic_cuda(const ModelConfig& config, TableBits tables) {
  return cuda::check_memory(cuda::PackedCudaBackend::bytes(config, tables), "the packed model");
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
Status check_synthetic_cuda(const ModelConfig& /*config*/, TableBits /*tables*/) {
  return check_cuda();
}
#endif

// All layers packed, two of them a byte an integer; the embedding and lm_head in float32 if not
// integers.
Status check_synthetic_cpu(const ModelConfig& config, TableBits tables) {
  const int64_t table = config.vocab * config.hidden;
  const bool tied = config.tied_embeddings && tables.embedding == tables.head;
  const auto bytes = [&](int bits) { return bits == kFloatBits ? 4 * table : bits * table / 8; };
  const int64_t integers = config.parameters() - (config.tied_embeddings ? 1 : 2) * table;
  const int64_t needed = integers / 2 + 2 * integers / config.layers + bytes(tables.embedding) +
                         (tied ? 0 : bytes(tables.head));
  const int64_t available = available_bytes();
  if (needed <= available) return {};
  return error(ErrorCode::kOutOfMemory, "the synthetic model: {:.1f} GB needed, {:.1f} GB free",
               1e-9 * static_cast<double>(needed), 1e-9 * static_cast<double>(available));
}

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
  if (precision.needs_simulation() && execution == Execution::kPacked) {
    return error(ErrorCode::kUnsupported,
                 "this recipe's quantisers are simulated only; run it without --execution packed");
  }
  if (execution == Execution::kAutomatic) execution = best_execution(model, precision, device);
  if (execution == Execution::kPacked && device == Device::kCpu) {
    return as_backend(PackedBackend::create(std::move(model), precision, next_layer));
  }
#ifdef QUAROT_CUDA
  if (device == Device::kCuda) return make_cuda(std::move(model), precision, execution, next_layer);
#endif
  QUAROT_RETURN_IF_ERROR(complete(model, next_layer));
  if (const auto kernels = cpu::kernels(); !kernels.ok()) return kernels.error();
  auto shared = std::make_shared<const Model>(std::move(model));
  return std::unique_ptr<Backend>(std::make_unique<SimulatedBackend>(std::move(shared), precision));
}

Result<std::unique_ptr<LayerStream>> make_layer_stream(const ModelConfig& config,
                                                       const OnlineTransforms& online,
                                                       const Precision& precision, Device device,
                                                       Progress& progress) {
  QUAROT_RETURN_IF_ERROR(check_device(device));
#ifdef QUAROT_CUDA
  if (device == Device::kCuda) {
    return cuda::CudaLayerStream::create(config, online, precision, progress);
  }
#endif
  return std::unique_ptr<LayerStream>(
      std::make_unique<CpuLayerStream>(config, online, precision, progress));
}

Result<std::unique_ptr<Backend>> make_synthetic_backend(const ModelConfig& config,
                                                        const TransformSpec& spec,
                                                        const Precision& precision,
                                                        TableBits tables, Progress& progress,
                                                        Device device) {
  QUAROT_RETURN_IF_ERROR(check_device(device));
  const bool on_gpu = device == Device::kCuda;
  QUAROT_RETURN_IF_ERROR(on_gpu ? check_synthetic_cuda(config, tables)
                                : check_synthetic_cpu(config, tables));
  progress.stage("making layers", config.layers);
  Model model = synthetic_model(config, spec, tables);
  const Layer layer = model.layers.front();
  return make_backend(std::move(model), precision, Execution::kPacked, device,
                      observed([&layer] { return Result<Layer>(layer); }, progress));
}

int64_t used_bytes(Device device) {
#ifdef QUAROT_CUDA
  if (device == Device::kCuda) return cuda::used_bytes();
#endif
  return device == Device::kCpu ? resident_bytes() : 0;
}

}  // namespace quarot
