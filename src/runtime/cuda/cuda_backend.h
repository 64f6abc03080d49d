// What both executions on the GPU share: the batch, the residual stream, the vocabulary, and how an
// error in an operation is kept for status().
#pragma once

#include "runtime/backend.h"
#include "runtime/cuda/batch.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/vocabulary.h"

namespace quarot::cuda {

// T: what the embedding and lm_head are held in.
template <typename T>
class CudaBackend : public Backend {
 public:
  const ModelConfig& config() const override { return config_; }
  Status status() const override { return status_; }
  void logits(int64_t first, int64_t /*count*/, MatrixRef out) override {
    run([&] { return vocabulary_.logits(x_.data() + first * config_.hidden, out, context_); });
  }

  std::vector<TokenLikelihood> likelihoods(int64_t first, std::span<const Token> targets) override {
    std::vector<TokenLikelihood> found(targets.size());
    run([&]() -> Status {
      QUAROT_ASSIGN_OR_RETURN(
          found, vocabulary_.likelihoods(x_.data() + first * config_.hidden, targets, context_));
      return {};
    });
    return found;
  }

 protected:
  CudaBackend(const ModelConfig& config, Context context, Vocabulary<T> vocabulary)
      : config_(config), context_(std::move(context)), vocabulary_(std::move(vocabulary)) {}

  cudaStream_t stream() const { return context_.stream(); }
  int64_t rows() const { return batch_.rows(); }

  // After the first error nothing more is done.
  template <typename Operation>
  void run(Operation&& operation) {
    if (status_.ok()) status_ = operation();
  }
  Status embed_tokens() { return vocabulary_.embed(batch_.tokens(), rows(), x_.data(), stream()); }

  ModelConfig config_;
  Context context_;
  Status status_;
  DeviceBatch batch_;
  DeviceArray<float> x_;  // [rows, hidden]

 private:
  Vocabulary<T> vocabulary_;
};

}  // namespace quarot::cuda
