// Float32 on the GPU with every quantiser simulated: any bits, any groups, any recipe, and without
// quantisers the float model. What SimulatedBackend computes, by cuBLAS and plain kernels.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/row_task.h"
#include "model/model.h"
#include "runtime/cuda/cuda_backend.h"
#include "runtime/precision.h"

namespace quarot::cuda {

class SimulatedCudaBackend final : public CudaBackend<float> {
 public:
  // The weights are float (see dequantize()). kOutOfMemory, with the numbers, before anything is
  // uploaded.
  static Result<std::unique_ptr<SimulatedCudaBackend>> create(const Model& model,
                                                              const Precision& precision);

  int add_sequence() override;
  int fork_sequence(int sequence, int64_t tokens) override;
  void drop_sequence(int sequence) override;  // its memory stays, for the next
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

 private:
  // Linears that read the same rows, one below the other.
  struct Weight {
    int64_t outputs = 0;
    int64_t inputs = 0;
    DeviceArray<float> values;  // [outputs, inputs]
    DeviceArray<float> bias;    // or empty
  };
  struct LayerWeights {
    Weight qkv, output, gate_up, down;
    DeviceArray<float> attention_norm, ffn_norm, query_norm, key_norm, key_center, value_center;
  };
  // A transform as butterflies and a factor, or as a dense matrix.
  struct Rotation {
    bool dense = false;
    HadamardTask task;
    DeviceArray<float> matrix;  // the factor, or all of it
  };
  struct Sequence {
    bool used = false;
    int64_t capacity = 0;       // tokens
    DeviceArray<float> memory;  // [layer][keys, values][capacity][kv_heads · head_dim]
  };

  SimulatedCudaBackend(const ModelConfig& config, const Precision& precision, Context context,
                       Vocabulary<float> vocabulary)
      : CudaBackend(config, std::move(context), std::move(vocabulary)), precision_(precision) {}
  Status upload(const Model& model);
  static Result<Weight> upload_together(const Layer& layer, std::initializer_list<Role> roles);
  static Result<std::unique_ptr<Rotation>> rotation_of(const std::optional<Orthogonal>& transform);
  Status reserve(const Batch& batch);
  Status grow(Sequence& sequence, int64_t tokens);
  Status copy(const Sequence& from, Sequence& to);
  float* cached(const SequenceChunk& chunk, int64_t layer, bool values);
  Status finish_site(RowTask task, const Rotation* rotation);
  Status multiply(const Weight& weight, float* y, bool accumulate);
  Status attend_block(const SequenceChunk& chunk, int64_t layer, int64_t first, int64_t count);

  const Precision precision_;
  std::vector<LayerWeights> layers_;
  std::unique_ptr<Rotation> norm_output_, heads_, query_key_, ffn_;
  std::vector<Sequence> sequences_;
  Batch host_batch_;
  Matrix cos_, sin_;  // [rows, rotary_dim / 2]
  DeviceArray<float> device_cos_, device_sin_;
  DeviceArray<float> input_, turned_, qkv_, query_, key_, value_, attention_, gate_up_, scores_;
};

}  // namespace quarot::cuda
