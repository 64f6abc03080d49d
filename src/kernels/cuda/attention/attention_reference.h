// What attention over the quantised cache means, in float64 on the CPU, and a cache built by hand.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/attention/kv_page.h"
#include "kernels/cuda/fused/cache_reference.h"

namespace quarot::cuda {

// A pool in host memory and the values it stands for.
struct HostCache {
  PageLayout layout;
  int kv_heads = 0;
  int table_stride = 0;
  std::vector<int32_t> lengths;
  std::vector<int32_t> table;  // [sequence][table_stride]
  std::vector<uint8_t> pool;
  std::vector<std::vector<double>> keys;  // [sequence][token][kv_head][head_dim]
  std::vector<std::vector<double>> values;

  uint8_t* block(int sequence, int token, int head) {
    const int32_t page = table[static_cast<size_t>(sequence) * table_stride + token / kPageTokens];
    return pool.data() + (static_cast<size_t>(page) * kv_heads + head) * layout.block_bytes();
  }
};

// Empty pages in random order, room for every sequence.
inline HostCache make_cache(PageLayout layout, int kv_heads, std::vector<int32_t> lengths,
                            std::mt19937& random) {
  HostCache cache;
  cache.layout = layout;
  cache.kv_heads = kv_heads;
  cache.lengths = std::move(lengths);
  int pages = 0;
  for (const int length : cache.lengths) {
    const int needed = (length + kPageTokens - 1) / kPageTokens;
    cache.table_stride = std::max(cache.table_stride, needed);
    pages += needed;
  }
  std::vector<int32_t> ids(static_cast<size_t>(pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  cache.table.assign(cache.lengths.size() * cache.table_stride, 0);
  size_t next = 0;
  for (size_t s = 0; s < cache.lengths.size(); ++s) {
    for (int p = 0; p < (cache.lengths[s] + kPageTokens - 1) / kPageTokens; ++p) {
      cache.table[s * cache.table_stride + p] = ids[next++];
    }
    const size_t elements = static_cast<size_t>(cache.lengths[s]) * kv_heads * layout.head_dim;
    cache.keys.emplace_back(elements);
    cache.values.emplace_back(elements);
  }
  cache.pool.assign(static_cast<size_t>(pages) * kv_heads * layout.block_bytes(), 0);
  return cache;
}

// Writes one token of one head; `bits` of the quantiser (at most the stored bits).
inline void store_token(HostCache& cache, int sequence, int token, int head, const float* key,
                        const float* value, int key_bits, int value_bits, float clip) {
  const PageLayout& l = cache.layout;
  uint8_t* block = cache.block(sequence, token, head);
  const int row = token % kPageTokens;
  const size_t at = (static_cast<size_t>(token) * cache.kv_heads + head) * l.head_dim;
  store_cache_row(key, l.head_dim, key_bits, l.key_bits, clip, block + l.key_row(row),
                  block + l.key_param(row), cache.keys[sequence].data() + at);
  store_cache_row(value, l.head_dim, value_bits, l.value_bits, clip, block + l.value_row(row),
                  block + l.value_param(row), cache.values[sequence].data() + at);
}

// out[head_dim] of one query at `position` of a sequence.
inline std::vector<double> attend(const HostCache& cache, int sequence, int kv_head, const float* q,
                                  int position, int window, double scale) {
  const int d = cache.layout.head_dim;
  const int first = window > 0 ? std::max(0, position + 1 - window) : 0;
  const auto at = [&](int token) {
    return (static_cast<size_t>(token) * cache.kv_heads + kv_head) * d;
  };
  std::vector<double> scores;
  for (int token = first; token <= position; ++token) {
    double dot = 0;
    for (int i = 0; i < d; ++i) dot += q[i] * cache.keys[sequence][at(token) + i];
    scores.push_back(dot * scale);
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  std::vector<double> out(static_cast<size_t>(d));
  for (int token = first; token <= position; ++token) {
    const double p = std::exp(scores[token - first] - top);
    total += p;
    for (int i = 0; i < d; ++i) out[i] += p * cache.values[sequence][at(token) + i];
  }
  for (double& x : out) x /= total;
  return out;
}

}  // namespace quarot::cuda
