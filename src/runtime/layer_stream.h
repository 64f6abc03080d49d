// Calibration tokens on their way through a model of which one layer at a time is in memory: what
// is kept of them between two layers are their residual streams. One meaning on every device;
// make_layer_stream() chooses.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/progress.h"
#include "model/basis.h"
#include "model/model.h"
#include "quant/regression.h"
#include "runtime/backend.h"
#include "runtime/site_observer.h"

namespace quarot {

// The tokens' rows of the embedding.
Matrix embedding_rows(const RowTable& embedding, std::span<const Token> tokens);

class LayerStream;

// Where a stream's residual stream is to get: to where another model's is.
struct ResidualTarget {
  LayerStream* stream;  // of the same device and windows
  Basis basis;          // from its residual stream's basis to the aiming one's
};

// Of the rows x that linears read, over all windows.
struct StreamMoments {
  Hessian inputs;
  std::optional<CrossMoment> lacking;  // beside them: h_target − (h + W·x), with a target
};

class LayerStream {
 public:
  // Operations of the layer, which stands alone as layer 0: caches are one layer's too.
  using Step = FunctionRef<void(Backend&)>;

  virtual ~LayerStream() = default;

  // Room for so many tokens, before the first window. kOutOfMemory, with the numbers.
  virtual Status reserve(int64_t tokens) = 0;
  // A window of tokens before the first layer; `embedded` are their rows of the embedding.
  virtual Status add_window(std::span<const Token> tokens, Matrix embedded) = 0;
  virtual int64_t windows() const = 0;

  // The layer, with float weights, until it is taken out again. Who changes weights that read a
  // site says so.
  Layer& put_layer(int64_t index, Layer layer);
  Layer take_layer();
  virtual void weights_changed(Space /*site*/) {}

  // Runs operations of that layer, the same for every window: all of them, or a step that takes up
  // what the last one left in the residual stream and the attention output. `observer`, if any,
  // sees the rows of all windows in order.
  Status run_layer(SiteObserver* observer = nullptr);
  Status run_step(Step step, SiteObserver* observer = nullptr);
  // All of them, for some windows only: first … last − 1.
  Status run_layer_for(int64_t first, int64_t last);

  // Runs a step that ends with the input of `site` and sums up what the linears there would read.
  // With a target there is one such linear, and it writes the residual stream.
  virtual Result<StreamMoments> moments(Space site, Step step, const ResidualTarget* target) = 0;

  // A window's residual stream, [tokens, hidden], as the last step left it, in memory that the
  // device reads.
  virtual ConstMatrixRef residual(int64_t window) const = 0;

 protected:
  // `progress` is asked between windows whether to go on.
  LayerStream(const ModelConfig& config, const OnlineTransforms& online, Progress& progress);

  const Model& model() const { return model_; }  // no more than config, transforms and the layer
  int64_t state_bytes(int64_t tokens) const;     // residual streams and attention outputs
  Status check_progress() const { return progress_.check(); }

 private:
  virtual void layer_changed() {}
  Status run_windows(int64_t first, int64_t last, Step step, SiteObserver* observer);
  virtual Status run_window(int64_t window, Step step, SiteObserver* observer) = 0;
  virtual Status wait() { return {}; }  // for what the windows' steps began

  Model model_;
  std::vector<int64_t> sliding_windows_;  // of all layers
  Progress& progress_;
};

}  // namespace quarot
