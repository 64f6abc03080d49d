// How the weights that read one site are rounded: all of it in one place, so that rounding to the
// nearest and GPTQ differ in nothing else.
#pragma once

#include "quant/kept_channels.h"
#include "recipe/recipe.h"

namespace quarot {

class WeightRounder {
 public:
  // `order`: the site's channels, where some are kept.
  WeightRounder(const Recipe& recipe, const ChannelOrder& order) : recipe_(recipe), order_(order) {}

  // The rows of the site as the Hessian must see them: without the kept channels, which are not
  // rounded under it.
  Matrix inputs(ConstMatrixRef rows) const;
  int64_t width(int64_t site_width) const { return site_width - order_.kept; }

  // The weight becomes what its rounded self stands for; with the integers beside it, where they
  // say all of it: no column is kept. With a Hessian of inputs() by GPTQ, else to the nearest.
  Status round(Linear& linear, const Hessian* hessian, GptqReport* report) const;

 private:
  Result<QuantizedWeight> integers(ConstMatrixRef weight, const Hessian* hessian,
                                   GptqReport* report) const;

  const Recipe& recipe_;
  const ChannelOrder& order_;
};

}  // namespace quarot
