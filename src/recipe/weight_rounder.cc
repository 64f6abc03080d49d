#include "recipe/weight_rounder.h"

#include "base/error.h"

namespace quarot {

Matrix WeightRounder::inputs(ConstMatrixRef rows) const {
  return order_.channels.empty() ? Matrix(rows) : gather(rows, order_.rest());
}

Result<QuantizedWeight> WeightRounder::integers(ConstMatrixRef weight, const Hessian* hessian,
                                                GptqReport* report) const {
  if (hessian == nullptr) return round_to_nearest(recipe_.weights, weight);
  return gptq(recipe_.weights, recipe_.gptq, weight, *hessian, report);
}

Status WeightRounder::round(Linear& linear, const Hessian* hessian, GptqReport* report) const {
  if (order_.channels.empty()) {
    QUAROT_ASSIGN_OR_RETURN(linear.quantized, integers(linear.weight, hessian, report));
    linear.weight = linear.quantized->dequantize();
    return {};
  }
  QUAROT_ASSIGN_OR_RETURN(const QuantizedWeight rest,
                          integers(gather(linear.weight, order_.rest()), hessian, report));
  scatter(rest.dequantize(), order_.rest(), linear.weight);
  WeightQuant high = recipe_.weights;
  high.bits = recipe_.precision.kept.bits;
  high.group = 0;
  if (!high.enabled()) return {};
  const QuantizedWeight kept = round_to_nearest(high, gather(linear.weight, order_.last()));
  scatter(kept.dequantize(), order_.last(), linear.weight);
  return {};
}

}  // namespace quarot
