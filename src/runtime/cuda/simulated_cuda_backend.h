// Float32 on the GPU with every quantiser simulated: any bits, any groups, any recipe, and without
// quantisers the float model. What SimulatedBackend computes, by cuBLAS and plain kernels.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cache_task.h"
#include "runtime/cuda/cuda_backend.h"
#include "runtime/cuda/float_cache.h"
#include "runtime/cuda/float_layer.h"
#include "runtime/site_observer.h"

namespace quarot::cuda {

class SimulatedCudaBackend final : public CudaBackend<float> {
 public:
  // The weights are float (see dequantize()). kOutOfMemory, with the numbers, before anything is
  // uploaded. A model without layers and an embedding is given one layer at a time.
  static Result<std::unique_ptr<SimulatedCudaBackend>> create(const Model& model,
                                                              const Precision& precision);

  void set_observer(SiteObserver* observer) { observer_ = observer; }

  // The only layer of a model that has one, in place of the last; its weights at one site alone.
  void put_layer(const Layer& layer, int64_t sliding_window);
  void put_weights(const Layer& layer, Space site);

  // Instead of embed(): a batch whose residual stream and attention output, in memory that the GPU
  // reads, are what they were when it was left.
  void resume(const Batch& batch, const float* residual, const float* attention);
  // Copies them there.
  void leave(float* residual, float* attention);

  const Context& context() const { return context_; }
  const float* residual() const { return x_.data(); }   // [rows, hidden]
  const float* input() const { return input_.data(); }  // what the linears at the last site read

  int add_sequence() override { return cache_.add(); }
  int fork_sequence(int sequence, int64_t tokens) override;
  void drop_sequence(int sequence) override { cache_.drop(sequence); }
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
  SimulatedCudaBackend(const ModelConfig& config, const Precision& precision, Context context,
                       Vocabulary<float> vocabulary)
      : CudaBackend(config, std::move(context), std::move(vocabulary)),
        precision_(precision),
        cache_(config_, precision_) {}
  Status upload(const Model& model);
  Status begin(const Batch& batch);
  Status reserve(const Batch& batch);

  const FloatLayer& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  void project(int64_t layer, Space site, float* y, bool accumulate);

  Status finish_site(int64_t layer, Space site, RowTask task, const FloatRotation* rotation);
  Status turn(const RowTask& task, const FloatRotation& rotation);
  Status quantize(int64_t layer, Space site, int64_t width);
  Status quantize_apart(const ActivationQuant& quant, const DeviceOrder& order, int64_t width);
  Result<const DeviceOrder*> order_by_threshold(int64_t width);

  Status finish_heads(int64_t layer, Space space, HeadsTask task);
  Status store(int64_t layer, bool values);
  Status attend_rows(const SequenceChunk& chunk, int64_t layer, int64_t first, int64_t count);
  Status attend_block(const SequenceChunk& chunk, int64_t layer, int64_t first, int64_t count);
  Status observe(int64_t layer, Space space, const float* rows, int64_t width);

  const Precision precision_;
  FloatCache cache_;
  std::vector<FloatLayer> layers_;
  std::unique_ptr<FloatRotation> norm_output_, heads_, query_key_, ffn_;
  SiteObserver* observer_ = nullptr;
  Batch host_batch_;
  Matrix cos_, sin_;  // [rows, rotary_dim / 2]
  DeviceArray<float> device_cos_, device_sin_;
  DeviceArray<float> input_, turned_, qkv_, query_, key_, value_, attention_, gate_up_, scores_;
  DeviceArray<float> largest_;  // of each channel of a site
  DeviceOrder order_;           // by it
};

}  // namespace quarot::cuda
