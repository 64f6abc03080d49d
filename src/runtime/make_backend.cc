#include "runtime/make_backend.h"

#include "runtime/packed_backend.h"
#include "runtime/simulated_backend.h"

namespace quarot {

Result<std::unique_ptr<Backend>> make_backend(Model model, const Precision& precision,
                                              Execution execution) {
  if (execution == Execution::kPacked) {
    Result<std::unique_ptr<PackedBackend>> packed =
        PackedBackend::create(std::move(model), precision);
    if (!packed.ok()) return packed.error();
    return std::unique_ptr<Backend>(*std::move(packed));
  }
  dequantize(model);
  auto shared = std::make_shared<const Model>(std::move(model));
  return std::unique_ptr<Backend>(std::make_unique<SimulatedBackend>(std::move(shared), precision));
}

}  // namespace quarot
