// Sees the rows at a space of a layer: for calibration and measurement.
#pragma once

#include "model/space.h"
#include "tensor/matrix.h"

namespace quarot {

// Spaces: the sites (kSites), kQuery and kKey after RoPE and R3, kValue.
class SiteObserver {
 public:
  virtual ~SiteObserver() = default;
  virtual void observe(int64_t layer, Space space, ConstMatrixRef rows) = 0;
};

}  // namespace quarot
