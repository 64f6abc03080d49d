// How the tensors that are not weights are quantised while running.
#pragma once

#include "quant/quantizer.h"

namespace quarot {

struct Precision {
  ActivationQuant activations;  // what the linears of the layers read
  CacheQuant keys;
  CacheQuant values;

  bool operator==(const Precision&) const = default;
};

}  // namespace quarot
