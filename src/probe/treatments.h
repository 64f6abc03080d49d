// What each way of treating a layer's linears leaves of the error of low bits: nothing, channels
// scaled by the best α, a rotation, both, and GPTQ on top.
#pragma once

#include <array>
#include <vector>

#include "recipe/scaling.h"

namespace quarot {

inline constexpr std::array kTreatments = {"plain", "smoothed", "rotated", "smoothed and rotated",
                                           "GPTQ on top"};
inline constexpr std::array kTrialBits = {4, 8};
inline constexpr std::array kTrialAlphas = {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0};

// Relative errors of one site's outputs on the calibration rows, one for each of kTrialAlphas.
struct AlphaSearch {
  std::array<double, kTrialAlphas.size()> errors{};

  size_t best() const;
  double alpha() const { return kTrialAlphas[best()]; }
  bool at_end() const { return best() == 0 || best() + 1 == kTrialAlphas.size(); }
};

struct LayerTreatments {
  // ‖Ŵ·x̂ − W·x‖ / ‖W·x‖ over the rows held out, by [bits][role][treatment].
  std::array<std::array<std::array<double, kTreatments.size()>, kRoles.size()>, kTrialBits.size()>
      errors{};
  // SmoothQuant's scales alone; the balancing ones before a rotation. By [bits][site].
  std::array<std::array<AlphaSearch, kSites.size()>, kTrialBits.size()> smoothing{}, balancing{};
  // ‖(x·Qᵀ)(W·Qᵀ)ᵀ − x·Wᵀ‖ / ‖x·Wᵀ‖ in float32, before anything is rounded. By site.
  std::array<double, kSites.size()> exactness{};
  // Frobenius norms of these x and x·Qᵀ, norm gains folded away where the rotation wants it so.
  std::array<double, kSites.size()> norm_before{}, norm_after{};
};

// Rows that some windows gave at each site of a layer, in the model's own basis.
using SiteRows = std::array<Matrix, kSites.size()>;

// Weights to the nearest without clipping; activations clipped at 0.9 of 4 bits, at nothing of 8.
// α and GPTQ's Hessian come from `calibration`, errors from `held_out`. `rotation` must rotate.
Result<LayerTreatments> try_treatments(const ModelConfig& config, const TransformSpec& rotation,
                                       const std::optional<Orthogonal>& found_basis, int64_t index,
                                       const Layer& layer, const SiteRows& calibration,
                                       const SiteRows& held_out);

}  // namespace quarot
