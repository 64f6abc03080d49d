// The KV cache in float32 on the GPU, a sequence in one piece: what SimulatedCudaBackend attends
// to, quantised as it is written or whole pages at a time.
#pragma once

#include <vector>

#include "model/config.h"
#include "runtime/cuda/batch.h"
#include "runtime/precision.h"

namespace quarot::cuda {

class FloatCache {
 public:
  FloatCache(const ModelConfig& config, const Precision& precision)
      : config_(config), precision_(precision) {}

  int add();
  // The first `tokens` tokens of one, for another that has none.
  Status copy(int from, int64_t tokens, int to, cudaStream_t stream);
  void drop(int sequence);  // its memory stays, for the next
  int64_t bytes() const;

  // Room for the batch's tokens.
  Status reserve(const Batch& batch, cudaStream_t stream);

  // Where a sequence has its keys or values of a layer, from position 0 on, [kv_heads · head_dim] a
  // token.
  float* at(int sequence, int64_t layer, bool values);

  // Quantises what lies there, the page-th kPageTokens tokens of kernels/cache_task.h.
  Status quantize_page(const SequenceChunk& chunk, int64_t layer, int64_t page,
                       cudaStream_t stream);

 private:
  struct Sequence {
    bool used = false;
    int64_t capacity = 0;       // tokens
    DeviceArray<float> memory;  // [layer][keys, values][capacity][kv_heads · head_dim]
  };
  Status grow(Sequence& sequence, int64_t tokens, cudaStream_t stream);
  Status copy(const Sequence& from, Sequence& to, cudaStream_t stream) const;

  const ModelConfig& config_;
  const Precision& precision_;
  std::vector<Sequence> sequences_;
  RopeTable rope_;  // where keys are quantised as they were before RoPE
};

}  // namespace quarot::cuda
