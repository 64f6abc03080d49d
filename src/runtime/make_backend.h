// Which backend runs a model, and where.
#pragma once

#include "model/model.h"
#include "model/transform.h"
#include "quarot/execution.h"
#include "runtime/backend.h"
#include "runtime/layer_stream.h"
#include "runtime/precision.h"

namespace quarot {

// kUnsupported, saying what to do, where this build or this machine lacks the device.
Status check_device(Device device);

// What Execution::kAutomatic means for this model, by the layers it has already.
Execution best_execution(const Model& model, const Precision& precision,
                         Device device = Device::kCpu);

// The layers that the model lacks come from `next_layer`; a backend that packs them holds one at a
// time.
Result<std::unique_ptr<Backend>> make_backend(Model model, const Precision& precision,
                                              Execution execution, Device device = Device::kCpu,
                                              const NextLayer& next_layer = {});

// Calibration tokens on their way through a model's layers, which run there as make_backend()'s
// simulated backend would run them. `progress` is asked between windows whether to go on.
Result<std::unique_ptr<LayerStream>> make_layer_stream(const ModelConfig& config,
                                                       const OnlineTransforms& online,
                                                       const Precision& precision, Device device,
                                                       Progress& progress);

// Of synthetic_model, every layer the same: as large and as fast as any of this shape, precision
// and tables. kOutOfMemory, with the numbers, before anything is made. `progress` is asked between
// layers whether to go on.
Result<std::unique_ptr<Backend>> make_synthetic_backend(const ModelConfig& config,
                                                        const TransformSpec& spec,
                                                        const Precision& precision,
                                                        TableBits tables, Progress& progress,
                                                        Device device = Device::kCpu);

// Of the device's memory: what this process holds of the machine's; what is taken of the GPU's.
int64_t used_bytes(Device device);

}  // namespace quarot
