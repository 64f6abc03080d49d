// The cache quantiser of DESIGN.md section 4 for one head vector, in float32, and its packed row.
#pragma once

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/attention/kv_page.h"

namespace quarot::cuda {

struct CacheGrid {
  float scale = 1;
  int zero = 0;
  int highest = 0;

  int quantize(float x) const {
    return static_cast<int>(std::clamp(std::nearbyint(x / scale) + static_cast<float>(zero), 0.0F,
                                       static_cast<float>(highest)));
  }
};

inline CacheGrid cache_grid(const float* x, int n, int bits, float clip) {
  const float top = clip * std::max(0.0F, *std::max_element(x, x + n));
  const float bottom = clip * std::min(0.0F, *std::min_element(x, x + n));
  CacheGrid grid;
  grid.highest = (1 << bits) - 1;
  if (top == bottom) return grid;
  grid.scale = (top - bottom) / static_cast<float>(grid.highest);
  grid.zero = static_cast<int>(std::nearbyint(-bottom / grid.scale));
  return grid;
}

// Writes the packed row and its params (a group's a tile's words apart), and in `meant` what they
// stand for.
inline void store_cache_row(const float* x, int head_dim, int bits, int stored, float clip,
                            uint8_t* row, uint8_t* params, double* meant) {
  if (stored == 16) {
    for (int i = 0; i < head_dim; ++i) {
      const __half half = __float2half_rn(x[i]);
      std::memcpy(row + 2 * i, &half, 2);
      meant[i] = __half2float(half);
    }
    return;
  }
  const int group = std::min(head_dim, 128);
  std::fill(row, row + head_dim * stored / 8, uint8_t{0});
  for (int g = 0; g < head_dim / group; ++g) {
    const CacheGrid grid = cache_grid(x + g * group, group, bits, clip);
    const uint32_t word = pack_param(grid.scale, grid.zero);
    std::memcpy(params + 4 * kTileTokens * g, &word, 4);
    for (int i = g * group; i < (g + 1) * group; ++i) {
      const int code = grid.quantize(x[i]);
      row[i * stored / 8] |= static_cast<uint8_t>(code << (i * stored % 8));
      meant[i] = static_cast<double>(unpack_param(word).scale) * (code - grid.zero);
    }
  }
}

}  // namespace quarot::cuda
