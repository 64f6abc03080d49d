// Packed integers on the GPU: 4-bit weights, quantised activations, a paged quantised cache, on the
// kernels of kernels/cuda. Decoding one sequence takes one launch where the step kernel has its
// shape; other decoding replays CUDA graphs.
#pragma once

#include <memory>
#include <optional>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/step/step.h"
#include "kernels/row_task.h"
#include "model/model.h"
#include "runtime/cuda/cuda_backend.h"
#include "runtime/cuda/graphs.h"
#include "runtime/cuda/packed_model.h"
#include "runtime/cuda/page_pool.h"
#include "runtime/precision.h"

namespace quarot::cuda {

class PackedCudaBackend final : public CudaBackend<__half> {
 public:
  // kUnsupported, saying what, for a model or a precision that these kernels have no form for: such
  // a one runs simulated. kOutOfMemory, with the numbers, before anything is packed.
  static Result<std::unique_ptr<PackedCudaBackend>> create(Model model, const Precision& precision,
                                                           const NextLayer& next_layer);
  static Status check(const Model& model, const Precision& precision);
  static int64_t bytes(const ModelConfig& config, TableBits tables);  // on the GPU, without cache

  // The most tokens of a sequence that, decoded alone, takes one launch (kernels/cuda/step) instead
  // of as many as there are operations; 0 where none does. Asked after such a batch.
  int64_t step_tokens() const { return step_ ? step_->most_tokens : 0; }

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

 private:
  PackedCudaBackend(const ModelConfig& config, const Precision& precision, Context context,
                    Vocabulary<__half> vocabulary, PackedModel model);
  template <typename T>
  Status grow(DeviceArray<T>& array, int64_t count);
  Status reserve_cache(const Batch& batch);
  Status reserve_rows();
  Status reserve_workspaces();
  Status begin(const Batch& batch);
  template <typename Operation>
  void enqueue(Operation&& operation) {
    if (!replayed_) run(operation);
  }

  // What makes one token's input of `reader`, as the fused kernels take it; null where they have no
  // such shape.
  std::optional<Rows> fused_rows(const RowTask& task, const PackedWeight& reader,
                                 const Rotation* rotation) const;
  RowTask norm_task(int64_t layer, Space site);
  RowTask heads_task();
  RowTask gate_task(bool gated);  // `gated`: by the product already
  AttentionShape attention_shape(int64_t layer) const;
  std::optional<StepLayer> step_layer(int64_t layer);
  Status plan_steps();

  // Makes the rows of `task` the input of `reader`: by the fused kernel, by the plain one where
  // that has no such shape, or, left to it in rows_, by the product itself.
  Status quantize(RowTask task, const PackedWeight& reader, const Rotation* rotation);
  Gemm product(const PackedWeight& weight, float* y) const;
  // Into y; or, accumulating, onto it.
  Status multiply(const PackedWeight& weight, float* y, bool accumulate);
  PagedCache cache_of(int64_t layer, const ChunkRun& run);
  HeadBatch heads_of(int64_t layer) const;
  Rotary rotary() const;
  CacheWriter writer_of(int64_t layer);
  // Whether attending appends on the way: faster for one sequence; of many, each split of the cache
  // would turn the queries anew.
  bool appends_late() const { return rows() == 1 && decode_appends(model_.query_key); }

  const Precision precision_;
  const PackedModel model_;
  PagePool cache_;
  RopeTable rope_;

  DeviceArray<int8_t> values_;  // the quantised input of the next product
  DeviceArray<float> scales_;   // [rows]
  GemmActivations values_type_ = GemmActivations::kInt8;
  std::optional<Rows> rows_;  // or what the next product quantises
  // Attention's and then, when those are done with, the FFN's.
  DeviceArray<float> floats_;
  float* qkv_ = nullptr;
  float* attention_ = nullptr;
  __half* query_ = nullptr;
  float* gate_up_ = nullptr;  // [rows, 2 · ffn]; or, where the product gates, [rows, ffn]
  bool gated_ = false;
  DeviceArray<uint8_t> gemm_workspace_, attention_workspace_;

  Graphs graphs_;
  std::optional<StepPlan> step_;  // for max_length_ and the memory as it is
  DeviceArray<uint8_t> step_image_, step_workspace_;
  int64_t step_length_ = 0;  // max_length that step_ was tried for; 0: not yet
  bool moved_ = false;       // memory that they use, with this batch
  bool replayed_ = false;    // a graph did this batch's operations already
};

}  // namespace quarot::cuda
