#include "recipe/round_layer.h"

#include "base/error.h"

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
  HessianObserver(Space space, Hessian& hessian) : space_(space), hessian_(&hessian) {}

  void observe(int64_t, Space space, ConstMatrixRef rows) override {
    if (space == space_) hessian_->add(rows);
  }

 private:
  Space space_;
  Hessian* hessian_;
};

// The layer stands in the stream, its weights rounded one after another.
class GptqRounder {
 public:
  GptqRounder(const Recipe& recipe, int64_t index, LayerStream& stream, Layer& layer)
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
    const int64_t width = layer_[*readers.begin()].weight.cols();
    Hessian hessian(width);
    HessianObserver observer(space, hessian);
    QUAROT_RETURN_IF_ERROR(stream_.run_step(step, &observer));
    for (const Role role : readers) {
      Linear& linear = layer_[role];
      GptqReport report;
      Result<QuantizedWeight> rounded =
          gptq(recipe_.weights, recipe_.gptq, linear.weight, hessian, &report);
      if (!rounded.ok()) return rounded.error().with_context(linear_name(index_, role));
      Matrix simulated = rounded->dequantize();
      errors_[static_cast<size_t>(role)] = {weight_error(linear.weight, simulated), report.error};
      linear.weight = std::move(simulated);
      linear.quantized = *std::move(rounded);
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

LayerErrors round_to_nearest(const WeightQuant& quant, Layer& layer) {
  LayerErrors errors;
  for (const Role role : kRoles) {
    Linear& linear = layer[role];
    linear.quantized = round_to_nearest(quant, linear.weight);
    errors[static_cast<size_t>(role)].weight =
        weight_error(linear.weight, linear.quantized->dequantize());
    linear.weight = Matrix();
  }
  return errors;
}

Result<LayerErrors> round_by_gptq(const Recipe& recipe, int64_t index, LayerStream& stream,
                                  Layer& layer) {
  GptqRounder rounder(recipe, index, stream, stream.put_layer(index, std::move(layer)));
  const Status rounded = rounder.run();
  layer = stream.take_layer();
  QUAROT_RETURN_IF_ERROR(rounded);
  for (Linear& linear : layer.linears) linear.weight = Matrix();
  return rounder.errors();
}

}  // namespace quarot
