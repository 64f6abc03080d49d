// How the tensors that are not weights are quantised while running.
#pragma once

#include "quant/kept_channels.h"
#include "quant/page_quant.h"
#include "quant/quantizer.h"

namespace quarot {

struct Precision {
  ActivationQuant activations;  // what the linears of the layers read; see Layer::at()
  CacheQuant keys;
  CacheQuant values;
  PageQuant pages;           // how keys and values are quantised, where not token by token
  KeptChannels kept;         // of what the linears read
  bool half_online = false;  // online transforms take and give half precision, summing in float

  // Whether only the simulated quantisers know how.
  bool needs_simulation() const { return kept.enabled() || pages.enabled() || half_online; }

  bool operator==(const Precision&) const = default;
};

}  // namespace quarot
