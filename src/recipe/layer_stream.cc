#include "recipe/layer_stream.h"

#include <utility>

#include "base/error.h"

namespace quarot {

namespace {

Model without_layers(const ModelConfig& config, const OnlineTransforms& online) {
  Model model;
  model.config = config;
  model.online = online;
  model.layers.resize(static_cast<size_t>(config.layers));
  return model;
}

}  // namespace

LayerStream::LayerStream(const ModelConfig& config, const OnlineTransforms& online,
                         const Precision& precision, Progress& progress)
    : model_(without_layers(config, online)), backend_(model_, precision), progress_(progress) {}

void LayerStream::add_window(std::span<const Token> tokens, Matrix embedded) {
  SimulatedBackend::State state;
  const auto rows = static_cast<int64_t>(tokens.size());
  state.batch = {{tokens.begin(), tokens.end()}, {{0, 0, rows, 0}}};
  state.residual = std::move(embedded);
  states_.push_back(std::move(state));
}

Layer& LayerStream::put_layer(int64_t index, Layer layer) {
  return model_.layers[static_cast<size_t>(index)] = std::move(layer);
}

Layer LayerStream::take_layer(int64_t index) {
  return std::exchange(model_.layers[static_cast<size_t>(index)], Layer());
}

Status LayerStream::run_layer(int64_t index, SiteObserver* observer) {
  return run_step([&](SimulatedBackend& backend) { forward_layer(backend, index); }, observer);
}

Status LayerStream::run_step(FunctionRef<void(SimulatedBackend&)> step, SiteObserver* observer) {
  backend_.set_observer(observer);
  for (SimulatedBackend::State& state : states_) {
    QUAROT_RETURN_IF_ERROR(progress_.check());
    const int sequence = backend_.add_sequence();  // id 0: the only one at a time
    backend_.exchange(state);
    step(backend_);
    backend_.exchange(state);
    backend_.drop_sequence(sequence);
  }
  return {};
}

}  // namespace quarot
