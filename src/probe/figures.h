// The pictures of a report: each with a sentence, computed from the run's numbers, that says what
// to look for, and the table that stands behind it.
#pragma once

#include <string>
#include <vector>

#include "probe/probe.h"
#include "probe/svg.h"

namespace quarot {

struct Figure {
  std::string id;  // also the name of its file
  std::string title;
  std::string sentence{};
  Svg picture;
  std::vector<std::string> headers{};
  std::vector<std::vector<std::string>> rows{};
  int layer_column = -1;  // of rows that belong to a layer
};

// What was measured: all of them after probe_model().
std::vector<Figure> figures(const Probe& probe);

// activation_figures.cc
Figure surface_figure(const Probe& probe);
Figure channels_figure(const Probe& probe);
Figure hadamard_figure(const Probe& probe);
// treatment_figures.cc
Figure alpha_figure(const Probe& probe);
Figure treatment_figure(const Probe& probe);
Figure cache_figure(const Probe& probe);
Figure depth_figure(const Probe& probe);
// loss_figures.cc
Figure heat_figure(const Probe& probe);
Figure attribution_figure(const Probe& probe);
Figure rotations_figure(const Probe& probe);

// The mean over layers of one linear's or all linears' relative output error.
double mean_error(const Probe& probe, size_t bits, size_t treatment);

}  // namespace quarot
