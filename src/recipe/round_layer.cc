#include "recipe/round_layer.h"

#include <algorithm>

#include "base/error.h"
#include "base/stopwatch.h"
#include "recipe/weight_rounder.h"

namespace quarot {

namespace {

constexpr double kRidge = 0.01;  // of the regression

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

using Step = LayerStream::Step;

constexpr auto kAttention = [](Backend& backend) {
  backend.normalize(0, Space::kAttentionInput);
  backend.project_qkv(0);
  backend.append_cache(0);
  backend.attend(0);
  backend.mix_heads(0);
};

constexpr auto kHidden = [](Backend& backend) {
  backend.normalize(0, Space::kFfnInput);
  backend.project_gate_up(0);
  backend.gate(0);
};

// The layer stands in the stream, its weights rounded one after another.
class HessianRounder {
 public:
  HessianRounder(const Recipe& recipe, int64_t index, LayerStream& stream,
                 const ResidualTarget* target, Layer& layer)
      : recipe_(recipe), index_(index), stream_(stream), target_(target), layer_(layer) {}

  // Each step runs all windows up to the inputs of some linears, then rounds these. What a step
  // computes after the last rounding is kept in the stream, or computed again where keeping it
  // would take more room.
  Status run() {
    QUAROT_RETURN_IF_ERROR(
        round(Space::kAttentionInput, {Role::kQuery, Role::kKey, Role::kValue},
              [](Backend& backend) { backend.normalize(0, Space::kAttentionInput); }));
    QUAROT_RETURN_IF_ERROR(
        round_writer(Space::kAttentionOutput, Role::kOutput, kAttention, &Backend::project_output));
    QUAROT_RETURN_IF_ERROR(round(Space::kFfnInput, {Role::kGate, Role::kUp}, [](Backend& backend) {
      backend.mix_heads(0);
      backend.project_output(0);
      backend.normalize(0, Space::kFfnInput);
    }));
    QUAROT_RETURN_IF_ERROR(
        round_writer(Space::kFfnHidden, Role::kDown, kHidden, &Backend::project_down));
    const Stopwatch watch;
    QUAROT_RETURN_IF_ERROR(stream_.run_step([](Backend& backend) {
      kHidden(backend);
      backend.project_down(0);
    }));
    rounded_.passing += watch.seconds();
    return {};
  }

  const RoundedLayer& rounded() const { return rounded_; }

 private:
  Status round(Space site, std::initializer_list<Role> readers, Step step) {
    const Stopwatch watch;
    QUAROT_ASSIGN_OR_RETURN(StreamMoments moments, stream_.moments(site, step, nullptr));
    rounded_.passing += watch.seconds();
    const WeightRounder rounder = rounder_of(site, *readers.begin());
    const Hessian hessian = rounder.inputs(std::move(moments.inputs));
    for (const Role role : readers) QUAROT_RETURN_IF_ERROR(round(rounder, role, hessian));
    stream_.weights_changed(site);
    return {};
  }

  Status round_writer(Space site, Role role, Step step, void (Backend::*project)(int64_t)) {
    if (target_ == nullptr) return round(site, {role}, step);
    const Stopwatch watch;
    QUAROT_RETURN_IF_ERROR(target_->stream->run_step([&](Backend& backend) {
      step(backend);
      (backend.*project)(0);
    }));
    QUAROT_ASSIGN_OR_RETURN(StreamMoments moments, stream_.moments(site, step, target_));
    rounded_.passing += watch.seconds();
    const WeightRounder rounder = rounder_of(site, role);
    const Hessian hessian = rounder.inputs(std::move(moments.inputs));
    QUAROT_ASSIGN_OR_RETURN(Matrix change,
                            regress(rounder.inputs(*std::move(moments.lacking)), hessian, kRidge));
    for (float& x : change.elements()) x *= static_cast<float>(recipe_.gptq_residual);
    rounder.add(std::move(change), layer_[role].weight);
    QUAROT_RETURN_IF_ERROR(round(rounder, role, hessian));
    stream_.weights_changed(site);
    return {};
  }

  WeightRounder rounder_of(Space site, Role reader) const {
    return {recipe_, index_, site, layer_.orders[site_index(site)], layer_[reader].weight.cols()};
  }

  Status round(const WeightRounder& rounder, Role role, const Hessian& hessian) {
    QUAROT_ASSIGN_OR_RETURN(rounded_.errors[static_cast<size_t>(role)],
                            round_linear(rounder, index_, role, layer_, &hessian));
    return {};
  }

  const Recipe& recipe_;
  int64_t index_;
  LayerStream& stream_;
  const ResidualTarget* target_;
  Layer& layer_;
  RoundedLayer rounded_;
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

Result<RoundedLayer> round_under_hessians(const Recipe& recipe, int64_t index, LayerStream& stream,
                                          const ResidualTarget* target, Layer& layer) {
  HessianRounder rounder(recipe, index, stream, target, stream.put_layer(index, std::move(layer)));
  const Status rounded = rounder.run();
  layer = stream.take_layer();
  if (!rounded.ok()) return rounded.error();
  std::ranges::for_each(layer.linears, drop_floats);
  return rounder.rounded();
}

}  // namespace quarot
