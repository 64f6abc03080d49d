// The quantised KV cache: the layout of its pages, and the tasks that write and read them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/row_task.h"

namespace quarot {

// A page holds the keys and values of 32 consecutive tokens of one KV head of one layer:
//
//   keys    words   uint32 [⌈head_dim·k_bits/32⌉][32 tokens]: a token's own bit string, element d
//                   at bit d·k_bits, lowest first, a word from each row of 32
//           scales  float [groups][32 tokens]
//           zeros   uint8 [groups][32 tokens], padded to 64 bytes
//   values  words   uint32 [v_bits][head_dim]: a channel's own bit string, token t at bit t·v_bits
//           scales, zeros as the keys'
//
// x ≈ scale·(q − zero). Keys lie so that one vector holds the same element of 16 tokens, and values
// so that it holds 16 channels of the same token: scores and outputs then need no sums across
// lanes, and neither wastes a bit (keys of 3 bits excepted, when head_dim is no multiple of 32).
// With 32 "bits" words are the floats themselves, scales 1 and zeros 0. Pages begin as zeros.
inline constexpr int64_t kPageTokens = 32;

struct CacheLayout {
  int64_t head_dim = 0;  // a multiple of 16: shorter head vectors end in zeros
  int k_bits = 4;        // 2, 3, 4, 8 or 32
  int v_bits = 4;
  int64_t groups = 1;  // of a head vector; head_dim/groups is a multiple of 32 where there are more

  // Always inline: files compiled for different instruction sets share no function (dispatch.h).
  [[gnu::always_inline]] int64_t k_words() const { return (head_dim * k_bits + 31) / 32; }
  [[gnu::always_inline]] int64_t scale_bytes() const { return groups * kPageTokens * 4; }
  [[gnu::always_inline]] int64_t zero_bytes() const {
    return (groups * kPageTokens + 63) / 64 * 64;
  }

  // Offsets in bytes.
  [[gnu::always_inline]] int64_t k_scales() const { return k_words() * kPageTokens * 4; }
  [[gnu::always_inline]] int64_t k_zeros() const { return k_scales() + scale_bytes(); }
  [[gnu::always_inline]] int64_t v_words() const { return k_zeros() + zero_bytes(); }
  [[gnu::always_inline]] int64_t v_scales() const { return v_words() + head_dim * v_bits * 4; }
  [[gnu::always_inline]] int64_t v_zeros() const { return v_scales() + scale_bytes(); }
  [[gnu::always_inline]] int64_t page_bytes() const { return v_zeros() + zero_bytes(); }
};

// Where a token of a sequence lies: page i of the sequence is at pages[i] + the task's offset.
struct CacheToken {
  std::byte* const* pages = nullptr;
  int64_t position = 0;
};

// Head vectors on their way out of a projection: RMSNorm with gain where there is one (per head),
// RoPE, Hadamard, minus the centre, times scale; then either to y or quantised into the cache.
struct HeadsTask {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  const float* x = nullptr;  // [tokens, heads·head_dim]
  int64_t x_stride = 0;
  const float* gain = nullptr;  // [head_dim], or null: no norm
  float eps = 0;
  const float* cos = nullptr;  // [tokens, rotary/2], or null: no RoPE. Element i turns with element
  const float* sin = nullptr;  // i + rotary/2: (a, b) → (a·cos − b·sin, b·cos + a·sin)
  int64_t rotary = 0;
  const HadamardTask* hadamard = nullptr;  // of one head, or null
  const float* centre = nullptr;           // [heads, head_dim], or null
  float scale = 1;

  float* y = nullptr;  // [tokens, heads, y_head], zeros behind head_dim; or null: into the cache
  int64_t y_stride = 0;
  int64_t y_head = 0;  // 0: head_dim

  const CacheToken* cache = nullptr;  // [tokens]
  const CacheLayout* layout = nullptr;
  int64_t page_offset = 0;  // of this layer's first head; heads follow each other
  bool values = false;      // or keys
  int bits = 0;             // of the quantiser, at most the layout's; 0: the layout's
  float clip = 1;
};

struct AttentionTask {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;      // divides heads
  const float* q = nullptr;  // [tokens, heads, layout head_dim], times the softmax scale already
  int64_t q_stride = 0;
  const CacheToken* cache = nullptr;  // [tokens]: each sees positions 0 … its own
  const CacheLayout* layout = nullptr;
  int64_t page_offset = 0;
  int64_t window = 0;  // only the last `window` positions, its own included; 0: all
  float* y = nullptr;  // [tokens, heads, y_head ≤ layout head_dim]
  int64_t y_stride = 0;
  int64_t y_head = 0;  // 0: the layout's head_dim
};

// The part of the tokens that is summed at once, and in order: sums do not depend on how the work
// is split.
inline constexpr int64_t kChunkTokens = 512;

}  // namespace quarot
