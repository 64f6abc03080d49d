// Which backend runs a model.
#pragma once

#include <memory>

#include "model/model.h"
#include "runtime/backend.h"
#include "runtime/precision.h"

namespace quarot {

enum class Execution {
  kSimulated,  // float32, quantisers simulated: any recipe
  kPacked,     // integers: the recipes that have a packed form
};

Result<std::unique_ptr<Backend>> make_backend(Model model, const Precision& precision,
                                              Execution execution);

}  // namespace quarot
