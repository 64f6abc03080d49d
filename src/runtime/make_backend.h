// Which backend runs a model, and where.
#pragma once

#include "model/model.h"
#include "quarot/execution.h"
#include "runtime/backend.h"
#include "runtime/precision.h"

namespace quarot {

// kUnsupported, saying what to do, where this build or this machine lacks the device.
Status check_device(Device device);

// What Execution::kAutomatic means for this model.
Execution best_execution(const Model& model, const Precision& precision,
                         Device device = Device::kCpu);

Result<std::unique_ptr<Backend>> make_backend(Model model, const Precision& precision,
                                              Execution execution, Device device = Device::kCpu);

}  // namespace quarot
