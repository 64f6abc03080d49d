#include "runtime/layer_stream.h"

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
                         Progress& progress)
    : model_(of_one_layer(config, online)),
      sliding_windows_(config.sliding_windows),
      progress_(progress) {}

Layer& LayerStream::put_layer(int64_t index, Layer layer) {
  model_.config.sliding_windows = {sliding_windows_[static_cast<size_t>(index)]};
  model_.layers[0] = std::move(layer);
  layer_changed();
  return model_.layers[0];
}

Layer LayerStream::take_layer() { return std::exchange(model_.layers[0], Layer()); }

Status LayerStream::run_layer(SiteObserver* observer) {
  return run_step([](Backend& backend) { forward_layer(backend, 0); }, observer);
}

Status LayerStream::run_step(Step step, SiteObserver* observer) {
  return run_windows(0, windows(), step, observer);
}

Status LayerStream::run_layer_for(int64_t first, int64_t last) {
  return run_windows(
      first, last, [](Backend& backend) { forward_layer(backend, 0); }, nullptr);
}

Status LayerStream::run_windows(int64_t first, int64_t last, Step step, SiteObserver* observer) {
  for (int64_t window = first; window < last; ++window) {
    QUAROT_RETURN_IF_ERROR(check_progress());
    QUAROT_RETURN_IF_ERROR(run_window(window, step, observer));
  }
  return wait();
}

int64_t LayerStream::state_bytes(int64_t tokens) const {
  const ModelConfig& config = model_.config;
  return tokens * (config.hidden + config.width(Space::kAttentionOutput)) *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace quarot
