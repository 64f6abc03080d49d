#include "recipe/weight_rounder.h"

#include <algorithm>

#include "base/error.h"
#include "base/random.h"
#include "quant/e8_lattice.h"
#include "quant/output_clip.h"
#include "runtime/vector_math.h"

namespace quarot {

WeightRounder::WeightRounder(const Recipe& recipe, int64_t index, Space site,
                             const ChannelOrder& order, int64_t site_width)
    : recipe_(recipe), index_(index), order_(order), width_(site_width - order.kept) {
  if (recipe.incoherence != Incoherence::kNone) input_ = incoherent(space_name(site), site_width);
}

Orthogonal WeightRounder::incoherent(std::string_view name, int64_t width) const {
  const uint64_t seed = Random(recipe_.seed, fmt::format("incoherence {} {}", index_, name)).next();
  return recipe_.incoherence == Incoherence::kRandom ? Orthogonal::random(width, seed)
                                                     : Orthogonal::randomised_hadamard(width, seed);
}

// S·H·Sᵀ of inputs S·x; turned in float64, or what a loud channel is rounded by would drown what
// the quiet ones say.
Hessian WeightRounder::inputs(Hessian hessian) const {
  const Matrix& h = hessian.matrix();
  if (!order_.channels.empty()) {
    const Matrix columns = gather(h, order_.rest());
    return {gather(transposed(columns.view()), order_.rest()), hessian.tokens()};
  }
  if (!input_) return hessian;
  BasicMatrix<double> turned(h.rows(), h.cols());
  std::ranges::copy(h.elements(), turned.data());
  for (int side = 0; side < 2; ++side) {
    input_->apply(turned);
    turned = transposed(turned.view());
  }
  Matrix result(h.rows(), h.cols());
  std::ranges::transform(turned.elements(), result.data(),
                         [](double x) { return static_cast<float>(x); });
  return {std::move(result), hessian.tokens()};
}

CrossMoment WeightRounder::inputs(CrossMoment cross) const {
  if (!order_.channels.empty()) return {gather(cross.matrix(), order_.rest()), cross.tokens()};
  if (!input_) return cross;
  Matrix turned(cross.matrix().view());
  input_->apply(turned);
  return {std::move(turned), cross.tokens()};
}

void WeightRounder::add(Matrix change, Matrix& weight) const {
  if (input_) input_->apply_transposed(change);
  const auto add_to = [&change](Matrix& sum) {
    for (int64_t r = 0; r < sum.rows(); ++r) quarot::add(change.row(r), sum.row(r));
  };
  if (order_.channels.empty()) return add_to(weight);
  Matrix rest = gather(weight, order_.rest());
  add_to(rest);
  scatter(rest, order_.rest(), weight);
}

Status WeightRounder::round(Role role, Linear& linear, const Hessian* hessian,
                            GptqReport* report) const {
  if (!order_.channels.empty()) return around_kept(role, linear.weight, hessian, report);
  if (input_) {  // Ŵ = Uᵀ·Q(U·W·Vᵀ)·V
    const Orthogonal output = incoherent(spaces_of(role).name, linear.weight.rows());
    input_->apply(linear.weight);
    Matrix columns = transposed(linear.weight.view());
    output.apply(columns);
    Matrix turned = transposed(columns.view());
    QUAROT_RETURN_IF_ERROR(to_floats(role, turned, hessian, report));
    columns = transposed(turned.view());
    output.apply_transposed(columns);
    linear.weight = transposed(columns.view());
    input_->apply_transposed(linear.weight);
    return {};
  }
  if (recipe_.grid == WeightGrid::kE8) return to_floats(role, linear.weight, hessian, report);
  QUAROT_ASSIGN_OR_RETURN(linear.quantized, to_integers(role, linear.weight, hessian, report));
  linear.weight = linear.quantized->dequantize();
  return {};
}

Result<QuantizedWeight> WeightRounder::to_integers(Role role, ConstMatrixRef weight,
                                                   const Hessian* hessian,
                                                   GptqReport* report) const {
  const WeightQuant quant = weights_of(recipe_, index_, role);
  if (hessian == nullptr) return round_to_nearest(quant, weight);
  if (recipe_.weight_method == WeightMethod::kGptq)
    return gptq(quant, recipe_.gptq, weight, *hessian, report);
  return round_with_output_clip(quant, weight, *hessian);
}

Status WeightRounder::to_floats(Role role, Matrix& weight, const Hessian* hessian,
                                GptqReport* report) const {
  if (recipe_.grid == WeightGrid::kInteger) {
    QUAROT_ASSIGN_OR_RETURN(const QuantizedWeight rounded,
                            to_integers(role, weight, hessian, report));
    weight = rounded.dequantize();
  } else if (hessian == nullptr) {
    weight = round_to_e8(weight);
  } else {
    QUAROT_ASSIGN_OR_RETURN(weight, ldlq_to_e8(weight, *hessian, recipe_.gptq.damp));
  }
  return {};
}

Status WeightRounder::around_kept(Role role, Matrix& weight, const Hessian* hessian,
                                  GptqReport* report) const {
  Matrix rest = gather(weight, order_.rest());
  QUAROT_RETURN_IF_ERROR(to_floats(role, rest, hessian, report));
  scatter(rest, order_.rest(), weight);
  WeightQuant high = recipe_.weights;
  high.bits = recipe_.precision.kept.bits;
  high.group = 0;
  if (!high.enabled()) return {};
  const QuantizedWeight kept = round_to_nearest(high, gather(weight, order_.last()));
  scatter(kept.dequantize(), order_.last(), weight);
  return {};
}

}  // namespace quarot
