// The forward pass on the CPU but for its products: how a site's input is held and multiplied is
// what the simulated and the packed backend differ in, and all they differ in. Norms, rotations,
// the cache, attention, the embedding and lm_head are the same code on the same numbers in both.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "model/model.h"
#include "runtime/backend.h"
#include "runtime/paged_cache.h"
#include "runtime/precision.h"

namespace quarot {

// How keys and values of this precision are stored: float, where they are quantised whole pages at
// a time; 5 to 7 bits as 8, keys of 3 bits as 4 where head_dim is no multiple of 32, heads padded
// with zeros to a multiple of 16.
CacheLayout cache_layout(const ModelConfig& config, const Precision& precision);

class CpuBackend : public Backend {
 public:
  const ModelConfig& config() const final { return model_->config; }
  int add_sequence() final { return cache_.add_sequence(); }
  int fork_sequence(int sequence, int64_t tokens) final {
    return cache_.fork_sequence(sequence, tokens);
  }
  void drop_sequence(int sequence) final { cache_.drop_sequence(sequence); }
  int64_t cache_bytes() const final { return cache_.bytes(); }

  void embed(const Batch& batch) final;
  void normalize(int64_t layer, Space site) final;
  void project_qkv(int64_t layer) final;
  void append_cache(int64_t layer) override;
  void attend(int64_t layer) override;
  void mix_heads(int64_t layer) final;
  void project_output(int64_t layer) final;
  void project_gate_up(int64_t layer) final;
  void gate(int64_t layer) final;
  void project_down(int64_t layer) final;
  void logits(int64_t first, int64_t count, MatrixRef out) final;

 protected:
  CpuBackend(std::shared_ptr<const Model> model, const Precision& precision,
             const cpu::Kernels& kernels);

  // The task's rows, quantised as the precision says, become what the linears of `site` read.
  virtual void set_input(int64_t layer, Space site, const RowTask& task) = 0;
  // y ← what these linears make of it, one beside the other in the order of kRoles; += with
  // accumulate.
  virtual void project(int64_t layer, Space site, MatrixRef y, bool accumulate) = 0;

  const Model& model() const { return *model_; }
  const Layer& layer(int64_t index) const { return model_->layers[static_cast<size_t>(index)]; }
  const Precision& precision() const { return precision_; }
  const cpu::Kernels& kernels() const { return *kernels_; }

  // The part of attend() for some rows of the batch.
  void attend_rows(int64_t layer, int64_t first, int64_t count);

  // q or k on its way out of the projection, up to the centre; v has none of it.
  HeadsTask query_heads(int64_t layer) const;
  HeadsTask key_heads(int64_t layer) const;
  HeadsTask value_heads() const;

  // Whether q and k have been normed and turned in place, so that what stores them need not.
  bool heads_ready_ = false;

  Batch batch_;
  Matrix cos_, sin_;  // [rows, rotary_dim / 2]
  Matrix x_;          // the residual stream
  Matrix qkv_;        // what the projections of q, k and v give
  Matrix attention_;  // what attention gives, before the heads are mixed
  PagedCache cache_;
  std::vector<CacheToken> places_;  // of each row of the batch

 private:
  // A transform as the kernels take it, with the memory it points into; what is no fast Hadamard
  // stays dense.
  struct Online {
    HadamardTask task;
    std::vector<float> factor;
    bool fast = false;
    std::optional<Orthogonal> dense;
    const HadamardTask* hadamard() const { return fast ? &task : nullptr; }
  };
  static Online online(const std::optional<Orthogonal>& transform);

  HeadsTask heads_task() const;
  void transform_input(int64_t layer, Space site, RowTask task, const Online& transform);

  std::shared_ptr<const Model> model_;
  Precision precision_;
  const cpu::Kernels* kernels_;
  Online norm_output_, heads_, query_key_, ffn_;
  Matrix query_, gate_up_, normed_;
};

}  // namespace quarot
