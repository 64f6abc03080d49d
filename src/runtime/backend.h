// The operations a forward pass is made of, executed on a backend's own memory. One interface, one
// meaning: simulated float on the CPU, packed integers on the CPU, CUDA. DESIGN.md, section 7.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "model/config.h"
#include "quarot/status.h"
#include "tensor/matrix.h"
#include "text/tokenizer.h"

namespace quarot {

// Consecutive tokens of one sequence within a batch.
struct SequenceChunk {
  int sequence;       // from add_sequence()
  int64_t first_row;  // of the batch
  int64_t count;
  int64_t position;  // of its first token in the sequence; what came before is in the cache
  // Tokens of the sequence as far as it is known, where chunks that follow are: LongRoPE chooses
  // its frequencies by it.
  int64_t length = 0;

  int64_t known_length() const { return std::max(length, position + count); }
};

struct Batch {
  std::vector<Token> tokens;  // [rows], each in 0 … vocab − 1
  std::vector<SequenceChunk> chunks;

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
};

// What a model thinks of a token that follows: log p, in nats, and whether no other is likelier.
struct TokenLikelihood {
  double log = 0;
  bool greedy = false;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Held by whoever runs a batch, from embed() to logits(), and around add_ and drop_sequence(),
  // where several threads share the backend.
  std::mutex turn;

  virtual const ModelConfig& config() const = 0;

  // A sequence's cache; ids are reused after drop_sequence().
  virtual int add_sequence() = 0;
  // One that begins with the first `tokens` tokens another one holds.
  virtual int fork_sequence(int sequence, int64_t tokens) = 0;
  virtual void drop_sequence(int sequence) = 0;
  virtual int64_t cache_bytes() const = 0;

  // The fused operations, in the order of forward(). x is the residual stream [rows, hidden].
  virtual void embed(const Batch& batch) = 0;  // x ← embedding rows
  virtual void normalize(int64_t layer,
                         Space site) = 0;  // a ← quantise(H·rms_norm(x)), the input of `site`
  virtual void project_qkv(int64_t layer) = 0;  // q, k, v ← a
  virtual void append_cache(
      int64_t layer) = 0;  // q, k ← R3·RoPE(norm(·)); cache ← quantise(k − c_k), quantise(v − c_v)
  virtual void attend(int64_t layer) = 0;           // o ← softmax(q·Kᵀ/√head_dim)·V, causal
  virtual void mix_heads(int64_t layer) = 0;        // a ← quantise(H_heads·o)
  virtual void project_output(int64_t layer) = 0;   // x ← x + o_proj(a)
  virtual void project_gate_up(int64_t layer) = 0;  // g, u ← a
  virtual void gate(int64_t layer) = 0;             // a ← quantise(R4·(silu(g)·u))
  virtual void project_down(int64_t layer) = 0;     // x ← x + down_proj(a)

  // logits [count, vocab] of rows first … first + count − 1 of the last batch.
  virtual void logits(int64_t first, int64_t count, MatrixRef out) = 0;

  // Of targets[i], as logits() of row first + i has it.
  virtual std::vector<TokenLikelihood> likelihoods(int64_t first, std::span<const Token> targets);

  // The first thing that went wrong in an operation (a GPU's memory is full); those after it did
  // nothing. To be asked after logits().
  virtual Status status() const { return {}; }
};

// Runs the layers over the batch and leaves the residual stream ready for logits(). Appends to the
// caches.
void forward(Backend& backend, const Batch& batch);

// One layer of it: from residual stream to residual stream.
void forward_layer(Backend& backend, int64_t layer);

// kInvalidArgument for a token outside the vocabulary or chunks that do not tile the batch.
Status check_batch(const Batch& batch, const ModelConfig& config);

}  // namespace quarot
