// A backend that passes every operation on to another one and keeps how long each kind took.
#pragma once

#include <array>
#include <string_view>

#include "runtime/backend.h"

namespace quarot {

class TimedBackend final : public Backend {
 public:
  struct Time {
    std::string_view operation;
    double seconds = 0;
  };

  // The backend must outlive this one.
  explicit TimedBackend(Backend& backend) : backend_(&backend) { reset(); }

  // In the order of forward(), since the last reset().
  const auto& times() const { return times_; }
  void reset();

  const ModelConfig& config() const override { return backend_->config(); }
  int add_sequence() override { return backend_->add_sequence(); }
  int fork_sequence(int sequence, int64_t tokens) override {
    return backend_->fork_sequence(sequence, tokens);
  }
  void drop_sequence(int sequence) override { backend_->drop_sequence(sequence); }
  int64_t cache_bytes() const override { return backend_->cache_bytes(); }
  Status status() const override { return backend_->status(); }

  void embed(const Batch& batch) override;
  void normalize(int64_t layer, Space site) override;
  void project_qkv(int64_t layer) override;
  void append_cache(int64_t layer) override;
  void attend(int64_t layer) override;
  void mix_heads(int64_t layer) override;
  void project_output(int64_t layer) override;
  void project_gate_up(int64_t layer) override;
  void gate(int64_t layer) override;
  void project_down(int64_t layer) override;
  void logits(int64_t first, int64_t count, MatrixRef out) override;

 private:
  enum Operation {
    kEmbed,
    kNormalize,
    kProjectQkv,
    kAppendCache,
    kAttend,
    kMixHeads,
    kProjectOutput,
    kProjectGateUp,
    kGate,
    kProjectDown,
    kLogits,
    kCount
  };
  template <typename Work>
  void time(Operation operation, const Work& work);

  Backend* backend_;
  std::array<Time, kCount> times_;
};

}  // namespace quarot
