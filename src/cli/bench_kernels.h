// The kernels alone, against what this machine can do at best.
#pragma once

#include <string>
#include <vector>

#include "base/progress.h"
#include "kernels/cpu/dispatch.h"
#include "model/config.h"

namespace quarot::cli {

// What the machine does at best, measured in the same minutes as the kernels.
enum class Limit { kDotProducts, kFloatProducts, kMemory };

struct KernelSpeed {
  std::string name;
  Limit limit;
  double rate;   // multiply-adds or bytes a second
  double share;  // of the limit's rate, both measured in turns of about a millisecond: the median
};

// Products at the model's shapes and two common ones, row operations and attention at the model's
// shapes.
Result<std::vector<KernelSpeed>> measure_kernels(const cpu::Kernels& kernels,
                                                 const ModelConfig& config, Progress& progress);

// Seconds that the float matrix products of a forward pass over `rows` tokens take by themselves,
// with the logits of one.
double float_products_seconds(const ModelConfig& config, int64_t rows);

}  // namespace quarot::cli
