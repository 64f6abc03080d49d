// Which backend runs a model.
#pragma once

#include "model/model.h"
#include "quarot/execution.h"
#include "runtime/backend.h"
#include "runtime/precision.h"

namespace quarot {

// What Execution::kAutomatic means for this model.
Execution best_execution(const Model& model, const Precision& precision);

Result<std::unique_ptr<Backend>> make_backend(Model model, const Precision& precision,
                                              Execution execution);

}  // namespace quarot
