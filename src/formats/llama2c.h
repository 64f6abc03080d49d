// llama2.c checkpoints (version 0): seven int32 — dim, hidden_dim, n_layers, n_heads, n_kv_heads,
// vocab_size (negative: lm_head is not tied), seq_len — then float32 weights in a fixed order.
// https://github.com/karpathy/llama2.c
#pragma once

#include <memory>

#include "formats/tensor_source.h"

namespace quarot {

struct Llama2cHeader {
  int64_t dim, hidden_dim, layers, heads, kv_heads, vocab, max_positions;
  bool tied;
};

class Llama2cFile : public TensorSource {
 public:
  virtual const Llama2cHeader& header() const = 0;
};

// Tensors carry Hugging Face llama names ("model.layers.0.self_attn.q_proj.weight", …) and row
// order.
Result<std::unique_ptr<Llama2cFile>> open_llama2c(const std::filesystem::path& path);

}  // namespace quarot
