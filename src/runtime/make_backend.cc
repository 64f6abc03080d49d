#include "runtime/make_backend.h"

#include "base/error.h"
#include "kernels/cpu/dispatch.h"
#include "runtime/packed_backend.h"
#include "runtime/simulated_backend.h"

namespace quarot {

Execution best_execution(const Model& model, const Precision& precision) {
  return PackedBackend::check(model, precision).ok() ? Execution::kPacked : Execution::kSimulated;
}

Result<std::unique_ptr<Backend>> make_backend(Model model, const Precision& precision,
                                              Execution execution) {
  if (execution == Execution::kAutomatic) execution = best_execution(model, precision);
  if (execution == Execution::kPacked) {
    Result<std::unique_ptr<PackedBackend>> packed =
        PackedBackend::create(std::move(model), precision);
    if (!packed.ok()) return packed.error();
    return std::unique_ptr<Backend>(*std::move(packed));
  }
  if (const auto kernels = cpu::kernels(); !kernels.ok()) return kernels.error();
  auto shared = std::make_shared<const Model>(std::move(model));
  return std::unique_ptr<Backend>(std::make_unique<SimulatedBackend>(std::move(shared), precision));
}

}  // namespace quarot
