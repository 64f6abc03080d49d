#include "recipe/layer_stream.h"

#include <utility>

#include "base/error.h"

namespace quarot {

namespace {

Model of_one_layer(const ModelConfig& config, const OnlineTransforms& online) {
  Model model;
  model.config = config;
  model.config.layers = 1;
  model.online = online;
  model.layers.resize(1);
  return model;
}

}  // namespace

Matrix embedding_rows(const RowTable& embedding, std::span<const Token> tokens) {
  Matrix rows(static_cast<int64_t>(tokens.size()), embedding.cols());
  for (int64_t r = 0; r < rows.rows(); ++r)
    embedding.read_row(tokens[static_cast<size_t>(r)], rows.row(r));
  return rows;
}

LayerStream::LayerStream(const ModelConfig& config, const OnlineTransforms& online,
                         const Precision& precision, Progress& progress)
    : model_(of_one_layer(config, online)),
      sliding_windows_(config.sliding_windows),
      backend_(model_, precision),
      progress_(progress) {}

void LayerStream::add_window(std::span<const Token> tokens, Matrix embedded) {
  SimulatedBackend::State state;
  const auto rows = static_cast<int64_t>(tokens.size());
  state.batch = {{tokens.begin(), tokens.end()}, {{0, 0, rows, 0}}};
  state.residual = std::move(embedded);
  states_.push_back(std::move(state));
}

Layer& LayerStream::put_layer(int64_t index, Layer layer) {
  model_.config.sliding_windows = {sliding_windows_[static_cast<size_t>(index)]};
  return model_.layers[0] = std::move(layer);
}

Layer LayerStream::take_layer() { return std::exchange(model_.layers[0], Layer()); }

Status LayerStream::run_layer(SiteObserver* observer) {
  return run_step([](SimulatedBackend& backend) { forward_layer(backend, 0); }, observer);
}

Status LayerStream::run_step(FunctionRef<void(SimulatedBackend&)> step, SiteObserver* observer) {
  for (int64_t window = 0; window < windows(); ++window)
    QUAROT_RETURN_IF_ERROR(run_window(window, step, observer));
  return {};
}

Status LayerStream::run_window(int64_t window, FunctionRef<void(SimulatedBackend&)> step,
                               SiteObserver* observer) {
  QUAROT_RETURN_IF_ERROR(progress_.check());
  SimulatedBackend::State& state = states_[static_cast<size_t>(window)];
  backend_.set_observer(observer);
  const int sequence = backend_.add_sequence();  // id 0: the only one at a time
  backend_.exchange(state);
  step(backend_);
  backend_.exchange(state);
  backend_.drop_sequence(sequence);
  return {};
}

}  // namespace quarot
