// Runs an Attribution over the parts that a report shows.
#pragma once

#include "base/progress.h"
#include "probe/probe.h"

namespace quarot {

// All of a probe's losses in the model's own basis: everything, and each site alone …
Status attribute_own(Attribution& attribution, Probe& probe, Progress& progress);
// … and in the recipe's: everything, sites, kinds of tensors, layers, and the heat map's cells.
Status attribute_rotated(Attribution& attribution, Probe& probe, Progress& progress);

}  // namespace quarot
