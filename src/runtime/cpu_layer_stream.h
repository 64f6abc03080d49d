// A LayerStream on the CPU.
#pragma once

#include "runtime/layer_stream.h"
#include "runtime/simulated_backend.h"

namespace quarot {

class CpuLayerStream final : public LayerStream {
 public:
  CpuLayerStream(const ModelConfig& config, const OnlineTransforms& online,
                 const Precision& precision, Progress& progress)
      : LayerStream(config, online, progress), backend_(model(), precision) {}

  Status reserve(int64_t tokens) override;
  Status add_window(std::span<const Token> tokens, Matrix embedded) override;
  int64_t windows() const override { return static_cast<int64_t>(states_.size()); }
  Result<StreamMoments> moments(Space site, Step step, const ResidualTarget* target) override;
  ConstMatrixRef residual(int64_t window) const override {
    return states_[static_cast<size_t>(window)].residual;
  }

 private:
  Status run_window(int64_t window, Step step, SiteObserver* observer) override;
  Matrix lack(int64_t window, Space site, const ResidualTarget& target) const;

  SimulatedBackend backend_;
  std::vector<SimulatedBackend::State> states_;
};

}  // namespace quarot
