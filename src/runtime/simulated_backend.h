// The reference backend: float32 on the CPU, every quantiser simulated (quantised and dequantised
// in place). Any bits, any groups, any recipe; without quantisers it is the float model.
#pragma once

#include <memory>
#include <vector>

#include "model/model.h"
#include "runtime/backend.h"
#include "runtime/precision.h"

namespace quarot {

// Sees the rows at a space of a layer: for calibration and measurement.
// Spaces: the sites (kSites), kQuery and kKey after RoPE and R3, kValue.
class SiteObserver {
 public:
  virtual ~SiteObserver() = default;
  virtual void observe(int64_t layer, Space space, ConstMatrixRef rows) = 0;
};

class SimulatedBackend final : public Backend {
 public:
  // The model must outlive the backend; its weights are float (see dequantize()).
  SimulatedBackend(const Model& model, const Precision& precision);
  SimulatedBackend(std::shared_ptr<const Model> model, const Precision& precision);

  void set_observer(SiteObserver* observer) { observer_ = observer; }

  // What lives from one operation to the next, swapped with what `state` holds: so that a layer can
  // be finished for many batches before the next one begins.
  struct State {
    Batch batch;
    Matrix residual;
    Matrix attention;
  };
  void exchange(State& state);

  const ModelConfig& config() const override { return model_->config; }
  int add_sequence() override;
  int fork_sequence(int sequence, int64_t tokens) override;
  void drop_sequence(int sequence) override;
  int64_t cache_bytes() const override;

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
  struct LayerCache {
    Matrix keys;  // [capacity, kv_heads · head_dim], as attention sees them
    Matrix values;
  };
  struct Sequence {
    bool used = false;
    int64_t length = 0;  // rows in use of every layer's cache
    std::vector<LayerCache> layers;
  };

  void observe(int64_t layer, Space space, ConstMatrixRef rows);
  void finish_site(int64_t layer, Space site, const std::optional<Orthogonal>& transform,
                   MatrixRef rows);
  void project(const Linear& linear, ConstMatrixRef input, Matrix& output);
  void rotate_heads(Matrix& rows, int64_t heads, const std::vector<float>& norm);
  void reserve(Sequence& sequence, int64_t layer, int64_t rows);
  void attend_block(const Sequence& sequence, int64_t layer, const SequenceChunk& chunk,
                    int64_t head, int64_t first);

  std::shared_ptr<const Model> model_;
  Precision precision_;
  SiteObserver* observer_ = nullptr;
  std::vector<Sequence> sequences_;
  Batch batch_;
  Matrix cos_, sin_;  // [rows, rotary_dim / 2]
  Matrix x_, input_, query_, key_, value_, attention_, gate_, up_;
};

}  // namespace quarot
