#include "base/error.h"
#include "runtime/backend.h"

namespace quarot {

void forward_layer(Backend& backend, int64_t layer) {
  backend.normalize(layer, Space::kAttentionInput);
  backend.project_qkv(layer);
  backend.append_cache(layer);
  backend.attend(layer);
  backend.mix_heads(layer);
  backend.project_output(layer);
  backend.normalize(layer, Space::kFfnInput);
  backend.project_gate_up(layer);
  backend.gate(layer);
  backend.project_down(layer);
}

void forward(Backend& backend, const Batch& batch) {
  backend.embed(batch);
  for (int64_t layer = 0; layer < backend.config().layers; ++layer) forward_layer(backend, layer);
}

Status check_batch(const Batch& batch, const ModelConfig& config) {
  for (const Token token : batch.tokens) {
    if (token < 0 || token >= config.vocab) {
      return error(
          ErrorCode::kInvalidArgument,
          "token {} is outside the model's vocabulary of {}: is the tokenizer another model's?",
          token, config.vocab);
    }
  }
  int64_t row = 0;
  for (const SequenceChunk& chunk : batch.chunks) {
    if (chunk.first_row != row || chunk.count < 1 || chunk.position < 0) {
      return error(ErrorCode::kInvalidArgument,
                   "a batch's chunks must follow one another without gaps");
    }
    row += chunk.count;
  }
  if (row != batch.rows()) {
    return error(ErrorCode::kInvalidArgument, "a batch of {} tokens whose chunks cover {}",
                 batch.rows(), row);
  }
  return {};
}

}  // namespace quarot
