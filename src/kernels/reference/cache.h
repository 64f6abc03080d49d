// What writing the KV cache and attending to it mean, operation for operation in float32 (fma is a
// fused multiply-add, rounded once):
//
//   Heads      RMSNorm and Hadamard as in rows.h; RoPE; x − centre; x·scale, each rounded.
//   Quantise   DESIGN.md section 4: x_min = clip·min(0, min x), x_max = clip·max(0, max x), both
//              limited to ±FLT_MAX/2 before clipping and NaN passed over; scale = (x_max − x_min) /
//              (2^b − 1), 1 if that is no normal number; zero = round(−x_min/scale); q =
//              round(x/scale limited to −zero … 2^b−1−zero) + zero.
//   Scores     Σ_g scale·(dot_g − zero·Σq_g): dot_g by fma from zero in ascending element, Σq_g in
//              16 sums as Σx² in rows.h, groups added in ascending order.
//   Softmax    within a chunk of 512 tokens: m the largest score, p = exp(score − m), l = Σp in 16
//              sums folded as above; output o by fma(p·scale, q, o) from zero in ascending token;
//              o_zero[g] = Σ (p·scale)·zero, in 16 sums. exp is rows.h's.
//   Chunks     m = the largest of all; l, o and o_zero summed from zero by fma(x, exp(m_chunk − m),
//              sum) in ascending chunk; y = (o − o_zero)/l.
#pragma once

#include "kernels/cache_task.h"

namespace quarot::reference {

// One field of a bit string whose words are `stride` apart: bits bits at index·bits.
void put_field(uint32_t* words, int64_t stride, int64_t index, int bits, uint32_t value);
uint32_t get_field(const uint32_t* words, int64_t stride, int64_t index, int bits);

void heads(const HeadsTask& task);
void attention(const AttentionTask& task);

}  // namespace quarot::reference
