// How the weights that read one site are rounded: all of it in one place, so that rounding to the
// nearest and GPTQ differ in nothing else.
#pragma once

#include <optional>

#include "quant/kept_channels.h"
#include "quant/regression.h"
#include "recipe/recipe.h"

namespace quarot {

class WeightRounder {
 public:
  // Of layer `index`, whose channels at the site are `order`, where some are kept. The recipe and
  // the order must outlive it.
  WeightRounder(const Recipe& recipe, int64_t index, Space site, const ChannelOrder& order,
                int64_t site_width);

  // The moments of the site's rows as those of what is rounded, of width(): without kept channels,
  // in the basis in which weights are rounded.
  Hessian inputs(Hessian hessian) const;
  CrossMoment inputs(CrossMoment cross) const;
  int64_t width() const { return width_; }

  // Adds a change for those inputs, [outputs, width()], to the weight.
  void add(Matrix change, Matrix& weight) const;

  // The weight becomes what its rounded self stands for; with the integers beside it, where they
  // say all of it: no column is kept, no basis is left, no lattice was used. `hessian` of inputs(),
  // where the recipe uses Hessians, else null; `report`, if any, is filled where GPTQ rounds to
  // integers.
  Status round(Role role, Linear& linear, const Hessian* hessian, GptqReport* report) const;

 private:
  Result<QuantizedWeight> to_integers(Role role, ConstMatrixRef weight, const Hessian* hessian,
                                      GptqReport* report) const;
  Status to_floats(Role role, Matrix& weight, const Hessian* hessian, GptqReport* report) const;
  Status around_kept(Role role, Matrix& weight, const Hessian* hessian, GptqReport* report) const;
  Orthogonal incoherent(std::string_view name, int64_t width) const;

  const Recipe& recipe_;
  int64_t index_;
  const ChannelOrder& order_;
  int64_t width_;
  std::optional<Orthogonal> input_;  // the readers' common basis, two-sided incoherence's inner one
};

}  // namespace quarot
