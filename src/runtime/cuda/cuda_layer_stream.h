// A LayerStream on the GPU: its layers run there, in float32, and so do the sums of the moments.
// What it keeps of its windows lies there too; where there is no room, in page-locked memory of the
// machine.
#pragma once

#include <memory>

#include "runtime/cuda/simulated_cuda_backend.h"
#include "runtime/layer_stream.h"

namespace quarot::cuda {

class CudaLayerStream final : public LayerStream {
 public:
  static Result<std::unique_ptr<LayerStream>> create(const ModelConfig& config,
                                                     const OnlineTransforms& online,
                                                     const Precision& precision,
                                                     Progress& progress);
  ~CudaLayerStream() override;

  Status reserve(int64_t tokens) override;
  Status add_window(std::span<const Token> tokens, Matrix embedded) override;
  int64_t windows() const override { return static_cast<int64_t>(windows_.size()); }
  void weights_changed(Space site) override { backend_->put_weights(model().layers[0], site); }
  Result<StreamMoments> moments(Space site, Step step, const ResidualTarget* target) override;
  ConstMatrixRef residual(int64_t window) const override;

 private:
  struct Window {
    Batch batch;
    float* residual = nullptr;   // [tokens, hidden]
    float* attention = nullptr;  // [tokens, heads · head_dim]
  };

  using LayerStream::LayerStream;
  void layer_changed() override;
  Status run_window(int64_t window, Step step, SiteObserver* observer) override;
  Status wait() override;
  int64_t working_bytes() const;
  Status lack(int64_t window, Space site, const float* target, const DeviceArray<float>& basis,
              DeviceArray<float>& result);

  std::unique_ptr<SimulatedCudaBackend> backend_;
  std::vector<Window> windows_;
  DeviceArray<float> on_gpu_;
  float* on_host_ = nullptr;
  float* free_ = nullptr;  // of either, for the next window
};

}  // namespace quarot::cuda
