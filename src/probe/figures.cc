#include "probe/figures.h"

namespace quarot {

double mean_error(const Probe& probe, size_t bits, size_t treatment) {
  double sum = 0;
  for (const LayerProbe& layer : probe.layers) {
    for (const auto& role : layer.treatments.errors[bits]) sum += role[treatment];
  }
  return sum / static_cast<double>(probe.layers.size() * kRoles.size());
}

std::vector<Figure> figures(const Probe& probe) {
  std::vector<Figure> all = {surface_figure(probe), channels_figure(probe)};
  if (probe.operators.empty()) return all;
  all.push_back(alpha_figure(probe));
  all.push_back(treatment_figure(probe));
  all.push_back(cache_figure(probe));
  all.push_back(depth_figure(probe));
  all.push_back(heat_figure(probe));
  all.push_back(attribution_figure(probe));
  all.push_back(rotations_figure(probe));
  all.push_back(hadamard_figure(probe));
  return all;
}

}  // namespace quarot
