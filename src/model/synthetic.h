// Models of published shapes and random numbers: to measure speed and memory without the weights.
#pragma once

#include <string>

#include "model/model.h"
#include "model/transform.h"

namespace quarot {

// kInvalidArgument, with the names of those known.
Result<ModelConfig> published_config(const std::string& name);
std::string published_names();

// Random 4-bit weights, one scale an output, and tables of these bits. One layer stands for all of
// them: `layers` has it alone, whatever the config says.
Model synthetic_model(const ModelConfig& config, const TransformSpec& spec, TableBits tables = {});

}  // namespace quarot
