// A LayerStream on the CPU: one window at a time is in its backend, the others in memory, or on
// disk where that would not do.
#pragma once

#include "base/scratch_memory.h"
#include "runtime/layer_stream.h"
#include "runtime/simulated_backend.h"

namespace quarot {

class CpuLayerStream final : public LayerStream {
 public:
  CpuLayerStream(const ModelConfig& config, const OnlineTransforms& online,
                 const Precision& precision, Progress& progress)
      : LayerStream(config, online, progress), backend_(model(), precision) {}

  Status reserve(int64_t tokens) override;
  Status reserve(int64_t tokens, int64_t memory_limit);  // bytes; what needs more goes to disk
  Status add_window(std::span<const Token> tokens, Matrix embedded) override;
  // Another one that is where `window` is.
  Status repeat_window(int64_t window) {
    const std::vector<Token> tokens = windows_[static_cast<size_t>(window)].tokens;
    return add_window(tokens, Matrix(residual(window)));
  }
  int64_t windows() const override { return static_cast<int64_t>(windows_.size()); }
  Result<StreamMoments> moments(Space site, Step step, const ResidualTarget* target) override;
  ConstMatrixRef residual(int64_t window) const override {
    return residual_of(windows_[static_cast<size_t>(window)]);
  }

 private:
  struct Window {
    std::vector<Token> tokens;
    int64_t first_row;
    int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  };
  MatrixRef residual_of(const Window& window) const;
  MatrixRef attention_of(const Window& window) const;
  Status run_window(int64_t window, Step step, SiteObserver* observer) override;
  Matrix lack(int64_t window, Space site, const ResidualTarget& target) const;

  SimulatedBackend backend_;
  std::vector<Window> windows_;
  int64_t rows_ = 0;  // of all windows
  int64_t reserved_rows_ = 0;
  ScratchMemory memory_;           // residual streams [reserved_rows_, hidden], attention outputs
  SimulatedBackend::State state_;  // the backend's, between windows
};

}  // namespace quarot
