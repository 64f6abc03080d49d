// Calibration tokens on their way through a model of which one layer at a time is in memory: what
// is kept of them between two layers are their residual streams.
#pragma once

#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/progress.h"
#include "runtime/simulated_backend.h"

namespace quarot {

// The tokens' rows of the embedding.
Matrix embedding_rows(const RowTable& embedding, std::span<const Token> tokens);

class LayerStream {
 public:
  // `progress` is asked between windows whether to go on.
  LayerStream(const ModelConfig& config, const OnlineTransforms& online, const Precision& precision,
              Progress& progress);

  // A window of tokens before the first layer; `embedded` are their rows of the embedding.
  void add_window(std::span<const Token> tokens, Matrix embedded);
  int64_t windows() const { return static_cast<int64_t>(states_.size()); }

  // The layer, with float weights, until it is taken out again. It stands alone, as layer 0 of the
  // backend: caches are one layer's too.
  Layer& put_layer(int64_t index, Layer layer);
  Layer take_layer();

  // Runs operations of that layer, the same for every window: all of them, or a step that takes up
  // what the last one left in the residual stream and the attention output. `observer`, if any,
  // sees the rows of all windows in order.
  Status run_layer(SiteObserver* observer = nullptr);
  Status run_step(FunctionRef<void(SimulatedBackend&)> step, SiteObserver* observer = nullptr);
  // The step for one window.
  Status run_window(int64_t window, FunctionRef<void(SimulatedBackend&)> step,
                    SiteObserver* observer = nullptr);

  // A window's residual stream, [tokens, hidden], as the last step left it.
  ConstMatrixRef residual(int64_t window) const {
    return states_[static_cast<size_t>(window)].residual;
  }

 private:
  Model model_;                           // no more than config, online transforms and the layer
  std::vector<int64_t> sliding_windows_;  // of all layers
  SimulatedBackend backend_;
  Progress& progress_;
  std::vector<SimulatedBackend::State> states_;
};

}  // namespace quarot
