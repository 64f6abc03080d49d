// Packed integers on the CPU: 4- or 8-bit weights, quantised activations, a paged quantised cache.
// The same integers as the simulated backend computes with, and a quarter of the memory.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/row_task.h"
#include "model/model.h"
#include "runtime/backend.h"
#include "runtime/paged_cache.h"
#include "runtime/precision.h"

namespace quarot {

class PackedBackend final : public Backend {
 public:
  // kUnsupported, saying what, for a model or a precision that has no packed form: such a one runs
  // simulated.
  static Status check(const Model& model, const Precision& precision);

  // Packs the weights for the kernels and keeps of the model what else it needs.
  static Result<std::unique_ptr<PackedBackend>> create(Model model, const Precision& precision);

  const ModelConfig& config() const override { return config_; }
  int add_sequence() override { return cache_.add_sequence(); }
  int fork_sequence(int sequence, int64_t tokens) override {
    return cache_.fork_sequence(sequence, tokens);
  }
  void drop_sequence(int sequence) override { cache_.drop_sequence(sequence); }
  int64_t cache_bytes() const override { return cache_.bytes(); }

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
  struct PackedLayer {
    cpu::PackedWeight qkv, output, gate_up, down;
    std::vector<float> attention_norm, ffn_norm, query_norm, key_norm, key_center, value_center;
    int64_t window = 0;
  };
  // A transform as the kernels take it, with the memory it points into.
  struct OnlineHadamard {
    HadamardTask task;
    std::vector<float> factor;
  };
  // Quantised rows, as the kernels write and read them.
  struct QuantizedBuffer {
    AlignedVector<int8_t> values;
    AlignedVector<float> scales;
    AlignedVector<int32_t> sums;
    cpu::Activations view;
  };

  PackedBackend(const ModelConfig& config, const Precision& precision, const CacheLayout& layout);
  Status pack(Model& model);
  static std::unique_ptr<OnlineHadamard> online(const std::optional<Orthogonal>& transform);
  RowTask row_task(int64_t rows, int64_t width) const;
  void quantize(RowTask task, const cpu::PackedWeight& reader, QuantizedBuffer& buffer);
  int64_t page_offset(int64_t layer) const;

  ModelConfig config_;
  Precision precision_;
  const cpu::Kernels* kernels_ = nullptr;
  Matrix embedding_, lm_head_;
  std::vector<float> final_norm_;
  std::vector<PackedLayer> layers_;
  std::unique_ptr<OnlineHadamard> norm_output_, heads_, query_key_, ffn_;
  PagedCache cache_;

  Batch batch_;
  std::vector<CacheToken> places_;  // of each row of the batch
  Matrix cos_, sin_;                // [rows, rotary_dim / 2]
  Matrix x_, qkv_, query_, attention_, gate_up_, normed_;
  QuantizedBuffer input_;
};

}  // namespace quarot
