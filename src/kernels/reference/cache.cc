#include "kernels/reference/cache.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/rows.h"

namespace quarot::reference {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

float folded(float (&sums)[16]) {
  for (int half = 8; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

std::vector<float> head_vector(const HeadsTask& t, int64_t token, int64_t head) {
  std::vector<float> x(static_cast<size_t>((t.head_dim + 15) / 16 * 16), 0.0F);
  rows({.rows = 1,
        .width = t.head_dim,
        .source = t.gain != nullptr ? RowSource::kRmsNorm : RowSource::kCopy,
        .x = t.x + token * t.x_stride + head * t.head_dim,
        .gain = t.gain,
        .eps = t.eps,
        .y = x.data()});
  for (int64_t i = 0; t.cos != nullptr && i < t.rotary / 2; ++i) {
    const float c = t.cos[token * (t.rotary / 2) + i];
    const float s = t.sin[token * (t.rotary / 2) + i];
    const float a = x[i];
    const float b = x[i + t.rotary / 2];
    x[i] = a * c - b * s;
    x[i + t.rotary / 2] = b * c + a * s;
  }
  if (t.hadamard != nullptr) hadamard(*t.hadamard, x.data(), t.head_dim);
  for (int64_t i = 0; i < t.head_dim; ++i) {
    if (t.centre != nullptr) x[i] -= t.centre[head * t.head_dim + i];
    x[i] *= t.scale;
  }
  return x;
}

struct Grid {
  float scale, zero;
};

Grid grid_of(const float* x, int64_t count, int bits, float clip) {
  float low = 0;
  float high = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] < low) low = x[i];
    if (x[i] > high) high = x[i];
  }
  const float x_min = clip * std::max(low, -FLT_MAX / 2);
  const float x_max = clip * std::min(high, FLT_MAX / 2);
  const float scale = (x_max - x_min) / static_cast<float>((1 << bits) - 1);
  const float usable = scale >= FLT_MIN ? scale : 1.0F;
  return {usable, std::nearbyint(-x_min / usable)};
}

uint32_t quantize(float x, const Grid& grid, int bits) {
  const float t = x / grid.scale;
  const auto highest = static_cast<float>((1 << bits) - 1);
  const float limited = std::clamp(std::isnan(t) ? 0.0F : t, -grid.zero, highest - grid.zero);
  return static_cast<uint32_t>(std::nearbyint(limited) + grid.zero);
}

// One head vector into its page.
void store(const HeadsTask& t, const CacheToken& at, int64_t head, const float* x) {
  const CacheLayout& l = *t.layout;
  std::byte* page = at.pages[at.position / kPageTokens] + t.page_offset + head * l.page_bytes();
  const int64_t slot = at.position % kPageTokens;
  const int bits = t.values ? l.v_bits : l.k_bits;
  const int level_bits = t.bits != 0 ? t.bits : bits;
  auto* words = reinterpret_cast<uint32_t*>(page + (t.values ? l.v_words() : 0));
  auto* scales = reinterpret_cast<float*>(page + (t.values ? l.v_scales() : l.k_scales()));
  auto* zeros = reinterpret_cast<uint8_t*>(page + (t.values ? l.v_zeros() : l.k_zeros()));
  const int64_t group = l.head_dim / l.groups;
  for (int64_t g = 0; g < l.groups; ++g) {
    const Grid grid = bits == 32 ? Grid{1, 0} : grid_of(x + g * group, group, level_bits, t.clip);
    scales[g * kPageTokens + slot] = grid.scale;
    zeros[g * kPageTokens + slot] = static_cast<uint8_t>(grid.zero);
    for (int64_t d = g * group; d < (g + 1) * group; ++d) {
      const uint32_t q =
          bits == 32 ? std::bit_cast<uint32_t>(x[d]) : quantize(x[d], grid, level_bits);
      if (t.values) {
        put_field(words + d, l.head_dim, slot, bits, q);
      } else {
        put_field(words + slot, kPageTokens, d, bits, q);
      }
    }
  }
}

float field_value(const uint32_t* words, int64_t stride, int64_t index, int bits) {
  const uint32_t q = get_field(words, stride, index, bits);
  return bits == 32 ? std::bit_cast<float>(q) : static_cast<float>(q);
}

// One query over one chunk.
struct State {
  explicit State(const CacheLayout& layout)
      : o(static_cast<size_t>(layout.head_dim), 0.0F),
        o_zero(static_cast<size_t>(layout.groups), 0.0F) {}
  float m = kNever;
  float l = 0;
  std::vector<float> o;
  std::vector<float> o_zero;
};

float score(const CacheLayout& l, const std::byte* page, int64_t slot, const float* q) {
  const auto* words = reinterpret_cast<const uint32_t*>(page) + slot;
  const auto* scales = reinterpret_cast<const float*>(page + l.k_scales());
  const auto* zeros = reinterpret_cast<const uint8_t*>(page + l.k_zeros());
  const int64_t group = l.head_dim / l.groups;
  float total = 0;
  for (int64_t g = 0; g < l.groups; ++g) {
    float dot = 0;
    float sums[16] = {};
    for (int64_t d = g * group; d < (g + 1) * group; ++d) {
      dot = std::fma(q[d], field_value(words, kPageTokens, d, l.k_bits), dot);
      sums[d % 16] += q[d];
    }
    const float zero = zeros[g * kPageTokens + slot];
    total += scales[g * kPageTokens + slot] * (dot - zero * folded(sums));
  }
  return total;
}

// Positions first…last−1, all of one chunk.
State attend(const CacheLayout& l, const std::byte* const* pages, int64_t offset, int64_t first,
             int64_t last, const float* q) {
  const auto page = [&](int64_t t) { return pages[t / kPageTokens] + offset; };
  State state(l);
  std::vector<float> p;
  for (int64_t t = first; t < last; ++t) {
    p.push_back(score(l, page(t), t % kPageTokens, q));
    state.m = std::max(state.m, p.back());
  }
  float sums[16] = {};
  for (int64_t t = first; t < last; ++t) {
    p[t - first] = exp(p[t - first] - state.m);
    sums[t % 16] += p[t - first];
  }
  state.l = folded(sums);

  const int64_t group = l.head_dim / l.groups;
  for (int64_t g = 0; g < l.groups; ++g) {
    float zero_sums[16] = {};
    for (int64_t t = first; t < last; ++t) {
      const int64_t at = g * kPageTokens + t % kPageTokens;
      const auto* words = reinterpret_cast<const uint32_t*>(page(t) + l.v_words());
      const float weight =
          p[t - first] * reinterpret_cast<const float*>(page(t) + l.v_scales())[at];
      const auto zero = reinterpret_cast<const uint8_t*>(page(t) + l.v_zeros())[at];
      zero_sums[t % 16] += weight * static_cast<float>(zero);
      for (int64_t d = g * group; d < (g + 1) * group; ++d) {
        const float value = field_value(words + d, l.head_dim, t % kPageTokens, l.v_bits);
        state.o[d] = std::fma(weight, value, state.o[d]);
      }
    }
    state.o_zero[g] = folded(zero_sums);
  }
  return state;
}

void merge(const CacheLayout& l, const std::vector<State>& chunks, float* y) {
  float m = kNever;
  for (const State& c : chunks) m = std::max(m, c.m);
  State sum(l);
  for (const State& c : chunks) {
    const float a = exp(c.m - m);
    sum.l = std::fma(c.l, a, sum.l);
    for (size_t g = 0; g < sum.o_zero.size(); ++g) {
      sum.o_zero[g] = std::fma(c.o_zero[g], a, sum.o_zero[g]);
    }
    for (size_t d = 0; d < sum.o.size(); ++d) sum.o[d] = std::fma(c.o[d], a, sum.o[d]);
  }
  const int64_t group = l.head_dim / l.groups;
  for (int64_t d = 0; d < l.head_dim; ++d) y[d] = (sum.o[d] - sum.o_zero[d / group]) / sum.l;
}

}  // namespace

void put_field(uint32_t* words, int64_t stride, int64_t index, int bits, uint32_t value) {
  for (int b = 0; b < bits; ++b) {
    const int64_t bit = index * bits + b;
    uint32_t& word = words[bit / 32 * stride];
    const uint32_t mask = uint32_t{1} << (bit % 32);
    word = (value >> b & 1) != 0 ? word | mask : word & ~mask;
  }
}

uint32_t get_field(const uint32_t* words, int64_t stride, int64_t index, int bits) {
  uint32_t value = 0;
  for (int b = 0; b < bits; ++b) {
    const int64_t bit = index * bits + b;
    value |= (words[bit / 32 * stride] >> (bit % 32) & 1) << b;
  }
  return value;
}

void heads(const HeadsTask& t) {
  for (int64_t token = 0; token < t.tokens; ++token) {
    for (int64_t head = 0; head < t.heads; ++head) {
      const std::vector<float> x = head_vector(t, token, head);
      if (t.y != nullptr) {
        const int64_t y_head = t.y_head != 0 ? t.y_head : t.head_dim;
        std::copy_n(x.data(), y_head, t.y + token * t.y_stride + head * y_head);
      } else {
        store(t, t.cache[token], head, x.data());
      }
    }
  }
}

void attention(const AttentionTask& t) {
  const CacheLayout& l = *t.layout;
  for (int64_t token = 0; token < t.tokens; ++token) {
    const CacheToken& at = t.cache[token];
    const int64_t end = at.position + 1;
    const int64_t begin = t.window == 0 ? 0 : std::max<int64_t>(end - t.window, 0);
    for (int64_t head = 0; head < t.heads; ++head) {
      const int64_t kv_head = head / (t.heads / t.kv_heads);
      const float* q = t.q + token * t.q_stride + head * l.head_dim;
      const int64_t offset = t.page_offset + kv_head * l.page_bytes();
      std::vector<State> chunks;
      for (int64_t first = begin; first < end;) {
        const int64_t last = std::min((first / kChunkTokens + 1) * kChunkTokens, end);
        chunks.push_back(attend(l, at.pages, offset, first, last, q));
        first = last;
      }
      const int64_t y_head = t.y_head != 0 ? t.y_head : l.head_dim;
      std::vector<float> y(static_cast<size_t>(l.head_dim));
      merge(l, chunks, y.data());
      std::copy_n(y.data(), y_head, t.y + token * t.y_stride + head * y_head);
    }
  }
}

}  // namespace quarot::reference
