#include "runtime/rope_tables.h"

#include <cmath>

#include "base/parallel.h"

namespace quarot {

void fill_rope_tables(const RopeConfig& rope, const Batch& batch, Matrix& cos, Matrix& sin) {
  const int64_t half = rope.rotary_dim / 2;
  cos.resize(batch.rows(), half);
  sin.resize(batch.rows(), half);
  for (const SequenceChunk& chunk : batch.chunks) {
    const std::vector<double>& frequencies = rope.frequencies(chunk.known_length());
    parallel_for(chunk.count, 16, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const auto position = static_cast<double>(chunk.position + r);
        for (int64_t i = 0; i < half; ++i) {
          const double angle = position * frequencies[static_cast<size_t>(i)];
          cos(chunk.first_row + r, i) = static_cast<float>(rope.attention_factor * std::cos(angle));
          sin(chunk.first_row + r, i) = static_cast<float>(rope.attention_factor * std::sin(angle));
        }
      }
    });
  }
}

}  // namespace quarot
