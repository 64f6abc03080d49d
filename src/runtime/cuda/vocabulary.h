// What stands before and after the layers, on the GPU: the embedding, the final norm and lm_head.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/plain/plain.h"
#include "kernels/cuda/table/table.h"
#include "model/model.h"
#include "runtime/backend.h"
#include "runtime/cuda/device.h"

namespace quarot::cuda {

// Of T = float, or of __half: then a table of integers stays as it is stored, and floats are held
// times a power of two that uses float16's range: they alone are rounded, to 11 bits, relative to
// the row's scale at most 2⁻¹¹ each. The rows that lm_head multiplies keep float32's accuracy as
// sums of two float16.
template <typename T>
class Vocabulary {
 public:
  static Result<Vocabulary> upload(const Model& model);
  static int64_t bytes(const ModelConfig& config, TableBits tables);  // what upload() will take

  // x [rows, hidden] ← embedding rows
  Status embed(const int32_t* tokens, int64_t rows, float* x, cudaStream_t stream) const;

  // out [rows, vocab] in host memory ← lm_head · rms_norm(x). Waits for it.
  Status logits(const float* x, MatrixRef out, const Context& context);

  // Backend::likelihoods(): one for each target, a row of x each. Waits for them.
  Result<std::vector<TokenLikelihood>> likelihoods(const float* x, std::span<const Token> targets,
                                                   const Context& context);

 private:
  struct Table {
    DeviceArray<T> weights;  // [vocab, hidden]
    float factor = 1;        // of the weights, to be what they stand for
    DeviceArray<uint32_t> words;
    DeviceArray<float> scales;
    IntegerTable integers;  // or, in words and scales, these
    bool is_integer() const { return integers.rows > 0; }
    bool empty() const { return weights.size() == 0 && !is_integer(); }
  };
  static Result<Table> upload(const RowTable& rows, const char* what);
  static Result<Table> upload_integers(const RowTable& rows, const char* what);
  const Table& head() const { return lm_head_.empty() ? embedding_ : lm_head_; }
  Status make_logits(const float* x, int64_t rows, const Context& context);
  Status multiply(int64_t rows, const Context& context);

  int64_t hidden_ = 0;
  int64_t vocab_ = 0;
  float eps_ = 0;
  Table embedding_, lm_head_;  // the latter empty: the embedding
  DeviceArray<float> final_norm_;
  DeviceArray<float> normed_, products_, logits_;  // of some rows at a time
  DeviceArray<T> split_;                           // these two for a head of float16 alone
  PinnedArray<float> host_logits_;                 // on their way to the caller's memory
  DeviceArray<int32_t> targets_;
  DeviceArray<RowScore> scores_;
};

}  // namespace quarot::cuda
