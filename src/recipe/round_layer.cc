#include "recipe/round_layer.h"

#include <algorithm>

#include "base/error.h"
#include "recipe/weight_rounder.h"

namespace quarot {

namespace {

double weight_error(const Matrix& weight, const Matrix& rounded) {
  double difference = 0;
  double norm = 0;
  for (int64_t i = 0; i < weight.size(); ++i) {
    const double w = weight.data()[i];
    const double d = w - rounded.data()[i];
    difference += d * d;
    norm += w * w;
  }
  return norm > 0 ? difference / norm : 0;
}

// Adds what one space carries to a Hessian.
class HessianObserver final : public SiteObserver {
 public:
  HessianObserver(Space space, const WeightRounder& rounder, Hessian& hessian)
      : space_(space), rounder_(&rounder), hessian_(&hessian) {}

  void observe(int64_t, Space space, ConstMatrixRef rows) override {
    if (space == space_) hessian_->add(rounder_->inputs(rows));
  }

 private:
  Space space_;
  const WeightRounder* rounder_;
  Hessian* hessian_;
};

// The error is the report's where there is a Hessian.
Result<RoundingError> round_linear(const WeightRounder& rounder, int64_t index, Role role,
                                   Layer& layer, const Hessian* hessian) {
  Linear& linear = layer[role];
  const Matrix original(linear.weight.view());
  GptqReport report;
  const Status rounded = rounder.round(role, linear, hessian, &report);
  if (!rounded.ok()) return rounded.error().with_context(linear_name(index, role));
  return RoundingError{weight_error(original, linear.weight), report.error};
}

// What integers say completely needs no floats.
void drop_floats(Linear& linear) {
  if (linear.quantized) linear.weight = Matrix();
}

// The layer stands in the stream, its weights rounded one after another.
class HessianRounder {
 public:
  HessianRounder(const Recipe& recipe, int64_t index, LayerStream& stream, Layer& layer)
      : recipe_(recipe), index_(index), stream_(stream), layer_(layer) {}

  // Each step runs all windows up to the inputs of some linears, then rounds these. What a step
  // computes after the last rounding is kept in the stream, or computed again where keeping it
  // would take more room.
  Status run() {
    QUAROT_RETURN_IF_ERROR(
        round(Space::kAttentionInput, {Role::kQuery, Role::kKey, Role::kValue},
              [&](SimulatedBackend& backend) { backend.normalize(0, Space::kAttentionInput); }));
    QUAROT_RETURN_IF_ERROR(
        round(Space::kAttentionOutput, {Role::kOutput}, [&](SimulatedBackend& backend) {
          backend.normalize(0, Space::kAttentionInput);
          backend.project_qkv(0);
          backend.append_cache(0);
          backend.attend(0);
          backend.mix_heads(0);
        }));
    QUAROT_RETURN_IF_ERROR(
        round(Space::kFfnInput, {Role::kGate, Role::kUp}, [&](SimulatedBackend& backend) {
          backend.mix_heads(0);
          backend.project_output(0);
          backend.normalize(0, Space::kFfnInput);
        }));
    const auto hidden = [&](SimulatedBackend& backend) {
      backend.normalize(0, Space::kFfnInput);
      backend.project_gate_up(0);
      backend.gate(0);
    };
    QUAROT_RETURN_IF_ERROR(round(Space::kFfnHidden, {Role::kDown}, hidden));
    return stream_.run_step([&](SimulatedBackend& backend) {
      hidden(backend);
      backend.project_down(0);
    });
  }

  const LayerErrors& errors() const { return errors_; }

 private:
  Status round(Space space, std::initializer_list<Role> readers,
               FunctionRef<void(SimulatedBackend&)> step) {
    const WeightRounder rounder(recipe_, index_, space, layer_.orders[site_index(space)],
                                layer_[*readers.begin()].weight.cols());
    Hessian hessian(rounder.width());
    HessianObserver observer(space, rounder, hessian);
    QUAROT_RETURN_IF_ERROR(stream_.run_step(step, &observer));
    for (const Role role : readers) {
      QUAROT_ASSIGN_OR_RETURN(errors_[static_cast<size_t>(role)],
                              round_linear(rounder, index_, role, layer_, &hessian));
    }
    return {};
  }

  const Recipe& recipe_;
  int64_t index_;
  LayerStream& stream_;
  Layer& layer_;
  LayerErrors errors_;
};

}  // namespace

Result<LayerErrors> round_to_nearest(const Recipe& recipe, int64_t index, Layer& layer) {
  LayerErrors errors;
  for (const Role role : kRoles) {
    const Space site = spaces_of(role).input;
    const WeightRounder rounder(recipe, index, site, layer.orders[site_index(site)],
                                layer[role].weight.cols());
    QUAROT_ASSIGN_OR_RETURN(errors[static_cast<size_t>(role)],
                            round_linear(rounder, index, role, layer, nullptr));
    drop_floats(layer[role]);
  }
  return errors;
}

Result<LayerErrors> round_under_hessians(const Recipe& recipe, int64_t index, LayerStream& stream,
                                         Layer& layer) {
  HessianRounder rounder(recipe, index, stream, stream.put_layer(index, std::move(layer)));
  const Status rounded = rounder.run();
  layer = stream.take_layer();
  QUAROT_RETURN_IF_ERROR(rounded);
  std::ranges::for_each(layer.linears, drop_floats);
  return rounder.errors();
}

}  // namespace quarot
