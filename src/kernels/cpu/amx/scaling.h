// Sums of a block of rows × a tile of outputs on their way to floats: a few rows at a time, between
// the tile products of the next block, which then hide them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/gemm_task.h"

namespace quarot::cpu {
namespace {

struct Scaling {
  int64_t row = 0, rows = 0;  // the block's rows, of which `done` are finished
  int64_t tile = 0, group = 0;
  const int32_t* sums = nullptr;  // [rows][32]
  float* terms = nullptr;         // [rows][32], of the groups so far
  int64_t done = 0;
};

// y = or += sums·sa·sw + bias, for a whole tile of a weight with one scale an output. The
// definition adds 0 to a product and then the bias; to add 0 to the bias first gives the same bits.
template <bool kAccumulate>
void scale_rows(const GemmTask& t, const Scaling& s, int64_t first, int64_t last) {
  const int64_t column = s.tile * kTileOutputs;
  const __m512 scale0 = _mm512_loadu_ps(t.w_scales + column);
  const __m512 scale1 = _mm512_loadu_ps(t.w_scales + column + 16);
  __m512 bias0 = _mm512_setzero_ps();
  __m512 bias1 = bias0;
  if (t.bias != nullptr) {
    bias0 = _mm512_add_ps(bias0, _mm512_loadu_ps(t.bias + column));
    bias1 = _mm512_add_ps(bias1, _mm512_loadu_ps(t.bias + column + 16));
  }
  const float* sa = t.a.scales + s.row;
  const int32_t* sums = s.sums + first * kTileOutputs;
  float* y = t.y + (s.row + first) * t.y_stride + column;
  for (int64_t r = first; r < last; ++r, y += t.y_stride, sums += kTileOutputs) {
    const __m512 scale = _mm512_set1_ps(sa[r]);
    __m512 v0 = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums)), scale);
    __m512 v1 = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + 16)), scale);
    v0 = _mm512_add_ps(_mm512_mul_ps(v0, scale0), bias0);
    v1 = _mm512_add_ps(_mm512_mul_ps(v1, scale1), bias1);
    if constexpr (kAccumulate) {
      v0 = _mm512_add_ps(_mm512_loadu_ps(y), v0);
      v1 = _mm512_add_ps(_mm512_loadu_ps(y + 16), v1);
    }
    _mm512_storeu_ps(y, v0);
    _mm512_storeu_ps(y + 16, v1);
  }
}

// y = or += terms + bias for up to 16 outputs, of which `left` are there.
inline void store_terms(const GemmTask& t, int64_t row, int64_t column, __m512 terms) {
  const int64_t left = t.outputs - column;
  if (left <= 0) return;
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
  float* y = t.y + row * t.y_stride + column;
  if (t.bias != nullptr) terms = _mm512_add_ps(terms, _mm512_loadu_ps(t.bias + column));
  if (t.accumulate) terms = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), terms);
  _mm512_mask_storeu_ps(y, mask, terms);
}

// The same where there are several groups, or fewer than 32 outputs.
inline void scale_group(const GemmTask& t, const Scaling& s, int64_t first, int64_t last) {
  const bool one_scale = t.a.scale_groups == 1;
  const float* sw = t.w_scales + (s.tile * t.groups + s.group) * kTileOutputs;
  for (int64_t r = first; r < last; ++r) {
    const int64_t row = s.row + r;
    const __m512 scale = _mm512_set1_ps(t.a.scales[one_scale ? row : row * t.groups + s.group]);
    for (int64_t n = 0; n < kTileOutputs; n += 16) {
      const int64_t at = r * kTileOutputs + n;
      __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(s.sums + at)), scale);
      v = _mm512_mul_ps(v, _mm512_loadu_ps(sw + n));
      v = _mm512_add_ps(s.group == 0 ? _mm512_setzero_ps() : _mm512_load_ps(s.terms + at), v);
      if (s.group + 1 < t.groups) {
        _mm512_store_ps(s.terms + at, v);
      } else {
        store_terms(t, row, s.tile * kTileOutputs + n, v);
      }
    }
  }
}

// The next `rows` rows, or what is left of them.
inline void advance(const GemmTask& t, Scaling& s, int64_t rows) {
  const int64_t first = s.done;
  s.done = first + rows < s.rows ? first + rows : s.rows;
  if (first == s.done) return;
  if (t.groups > 1 || t.outputs < (s.tile + 1) * kTileOutputs) {
    scale_group(t, s, first, s.done);
  } else if (t.accumulate) {
    scale_rows<true>(t, s, first, s.done);
  } else {
    scale_rows<false>(t, s, first, s.done);
  }
}

}  // namespace
}  // namespace quarot::cpu
