// The fused row operations, written once for every instruction set; see gemm_tile.h for how it is
// included. `V` is an instruction set's 16 floats (simd.h of its folder) with
//   splat, load, store, add, sub, mul, div, fma, max (the second where the first is NaN), abs,
//   negate, round (half to even), not_nan (0 for NaN), pow2 (2^n of an integral n), sqrt1 (of a
//   scalar), swap<h> (lane j from lane j^h), negate_odd<h> (lanes with bit h), sum and largest
//   (folded in halves), store_bytes (integral floats as int8; returns their sum), kWide (one
//   register holds 16 floats)
#pragma once

#include "kernels/cpu/unroll.h"
#include "kernels/row_task.h"

namespace quarot::cpu {

template <class V>
struct Rows {
  using F = typename V::F;
  static constexpr int64_t kLanes = 16;

  static F load_some(const float* p, int64_t count) {
    if (count >= kLanes) return V::load(p);
    alignas(64) float lanes[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
    return V::load(lanes);
  }

  // See reference::exp.
  static F exp(F x) {
    x = V::max(V::min(x, V::splat(87.0F)), V::splat(-87.0F));
    const F n = V::round(V::mul(x, V::splat(1.44269504F)));
    const F r =
        V::sub(V::sub(x, V::mul(n, V::splat(0.693359375F))), V::mul(n, V::splat(-2.12194440e-4F)));
    F p = V::splat(1.9841270e-4F);
    p = V::add(V::mul(p, r), V::splat(1.3888889e-3F));
    p = V::add(V::mul(p, r), V::splat(8.3333333e-3F));
    p = V::add(V::mul(p, r), V::splat(4.1666667e-2F));
    p = V::add(V::mul(p, r), V::splat(1.6666667e-1F));
    p = V::add(V::mul(p, r), V::splat(0.5F));
    p = V::add(V::mul(p, r), V::splat(1.0F));
    p = V::add(V::mul(p, r), V::splat(1.0F));
    return V::mul(p, V::pow2(n));
  }

  static float inverse_rms(const RowTask& t, const float* x) {
    F sum = V::splat(0.0F);
    for (int64_t i = 0; i < t.width; i += kLanes) {
      const F v = load_some(x + i, t.width - i);
      sum = V::add(sum, V::mul(v, v));
    }
    return 1.0F / V::sqrt1(V::sum(sum) / static_cast<float>(t.width) + t.eps);
  }

  // The row before the Hadamard, zeros to a multiple of 16.
  static void source(const RowTask& t, int64_t row, float* y) {
    const float* x = t.x + row * t.x_stride;
    const float* up = t.up + row * t.up_stride;
    const F r = V::splat(t.source == RowSource::kRmsNorm ? inverse_rms(t, x) : 0.0F);
    for (int64_t i = 0; i < t.width; i += kLanes) {
      F v = load_some(x + i, t.width - i);
      if (t.source == RowSource::kRmsNorm) {
        v = V::mul(v, r);
        if (t.gain != nullptr) v = V::mul(v, load_some(t.gain + i, t.width - i));
      } else if (t.source == RowSource::kSwiGlu) {
        const F silu = V::div(v, V::add(V::splat(1.0F), exp(V::negate(v))));
        v = V::mul(silu, load_some(up + i, t.width - i));
      }
      V::store(y + i, v);
    }
  }

  // Butterflies (a, b) → (a+b, a−b) of one stride on x [length], length and stride multiples of 16.
  static void butterflies(float* x, int64_t length, int64_t stride) {
    for (int64_t i = 0; i < length; i += 2 * stride) {
      for (int64_t j = i; j < i + stride; j += kLanes) {
        const F a = V::load(x + j);
        const F b = V::load(x + j + stride);
        V::store(x + j, V::add(a, b));
        V::store(x + j + stride, V::sub(a, b));
      }
    }
  }

  // Those of a stride and of twice that, in one pass.
  static void two_butterflies(float* x, int64_t length, int64_t stride) {
    for (int64_t i = 0; i < length; i += 4 * stride) {
      for (float* p = x + i; p < x + i + stride; p += kLanes) {
        const F a = V::load(p);
        const F b = V::load(p + stride);
        const F c = V::load(p + 2 * stride);
        const F d = V::load(p + 3 * stride);
        const F sum = V::add(a, b);
        const F difference = V::sub(a, b);
        const F sum2 = V::add(c, d);
        const F difference2 = V::sub(c, d);
        V::store(p, V::add(sum, sum2));
        V::store(p + stride, V::add(difference, difference2));
        V::store(p + 2 * stride, V::sub(sum, sum2));
        V::store(p + 3 * stride, V::sub(difference, difference2));
      }
    }
  }

  // The same where both elements share a vector: a + b, and −b + a.
  template <int kStride>
  static F butterfly(F x) {
    return V::add(V::template swap<kStride>(x), V::template negate_odd<kStride>(x));
  }

  static void butterflies_within(float* x, int64_t length, int64_t first_stride) {
    for (int64_t i = 0; i < length; i += kLanes) {
      F v = V::load(x + i);
      if (first_stride <= 1) v = butterfly<1>(v);
      if (first_stride <= 2) v = butterfly<2>(v);
      if (first_stride <= 4) v = butterfly<4>(v);
      V::store(x + i, butterfly<8>(v));
    }
  }

  // Any length and stride.
  static void butterflies_one_by_one(float* x, int64_t length, int64_t stride) {
    for (int64_t i = 0; i < length; i += 2 * stride) {
      for (int64_t j = i; j < i + stride; ++j) {
        const float a = x[j];
        const float b = x[j + stride];
        x[j] = a + b;
        x[j + stride] = a - b;
      }
    }
  }

  static void walsh(float* x, int64_t length, int64_t inner) {
    int64_t stride = inner;
    const bool power_of_two = (inner & (inner - 1)) == 0;
    if (length % kLanes == 0 && inner < kLanes && power_of_two) {
      butterflies_within(x, length, inner);
      stride = kLanes;
    }
    for (; stride % kLanes == 0 && 4 * stride <= length; stride *= 4) {
      two_butterflies(x, length, stride);
    }
    for (; stride < length; stride *= 2) {
      if (stride % kLanes == 0) {
        butterflies(x, length, stride);
      } else {
        butterflies_one_by_one(x, length, stride);
      }
    }
  }

  // Rows i…i+kTogether−1 of y [m][columns] = scale·factor·x, or as many as there are.
  template <int kTogether>
  static void apply_factor(const HadamardTask& h, const float* x, int64_t columns, int64_t i,
                           float* y) {
    const float* f[kTogether];
    unroll<kTogether>([&](auto k) { f[k] = h.factor + (i + k < h.m ? i + k : i) * h.m; });
    const F scale = V::splat(h.scale);
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      F sums[kTogether];
      unroll<kTogether>([&](auto k) { sums[k] = V::splat(0.0F); });
      for (int64_t j = 0; j < h.m; ++j) {
        const F v = V::load(x + j * columns + c);
        unroll<kTogether>([&](auto k) { sums[k] = V::fma(V::splat(f[k][j]), v, sums[k]); });
      }
      unroll<kTogether>([&](auto k) {
        if (i + k < h.m) V::store(y + (i + k) * columns + c, V::mul(sums[k], scale));
      });
    }
    for (; c < columns; ++c) {
      for (int64_t k = 0; k < kTogether && i + k < h.m; ++k) {
        float sum = 0;
        for (int64_t j = 0; j < h.m; ++j) sum = __builtin_fmaf(f[k][j], x[j * columns + c], sum);
        y[(i + k) * columns + c] = sum * h.scale;
      }
    }
  }

  // y [m][columns] = scale·factor·x, with as many sums at once as hide the latency of one.
  static void apply_factor(const HadamardTask& h, const float* x, int64_t columns, float* y) {
    constexpr int kMany = V::kWide ? 12 : 6;
    constexpr int kFew = 4;
    int64_t i = 0;
    for (; i + kMany <= h.m; i += kMany) apply_factor<kMany>(h, x, columns, i, y);
    for (; i < h.m; i += kFew) apply_factor<kFew>(h, x, columns, i, y);
  }

  // Returns where the result is: x or the other half of the scratch. Padding stays zero.
  static float* hadamard(const HadamardTask& h, float* x, float* other, int64_t width) {
    const int64_t columns = h.inner << h.log2;
    for (int64_t part = 0; part < width; part += columns) walsh(x + part, columns, h.inner);
    if (h.m == 1) {
      const F scale = V::splat(h.scale);
      for (int64_t i = 0; i < width; i += kLanes) V::store(x + i, V::mul(V::load(x + i), scale));
      return x;
    }
    for (int64_t block = 0; block < width; block += columns * h.m) {
      apply_factor(h, x + block, columns, other + block);
    }
    for (int64_t i = width; i % kLanes != 0; ++i) other[i] = 0;
    return other;
  }

  static float scale_of(const RowTask& t, const float* x, int64_t count) {
    F largest = V::splat(0.0F);
    for (int64_t i = 0; i < count; i += kLanes) largest = V::max(V::abs(V::load(x + i)), largest);
    constexpr float kLargest = 0x1.fffffep126F;  // FLT_MAX / 2
    const float found = V::largest(largest);
    const float limited = found < kLargest ? found : kLargest;
    const float scale = t.clip * limited / static_cast<float>((1 << (t.bits - 1)) - 1);
    return scale >= 0x1p-126F ? scale : 1.0F;  // FLT_MIN
  }

  // count integers; returns their sum.
  static int32_t quantize(const RowTask& t, const float* x, int64_t count, float scale, int8_t* q) {
    const auto highest = static_cast<float>((1 << (t.bits - 1)) - 1);
    const F s = V::splat(scale);
    const F lo = V::splat(-highest - 1.0F);
    const F hi = V::splat(highest);
    typename V::Sum sum = V::no_sum();
    for (int64_t i = 0; i < count; i += kLanes) {
      const F level = V::not_nan(V::div(V::load(x + i), s));
      sum = V::store_bytes(q + i, V::min(V::max(level, lo), hi), sum);
    }
    return V::total(sum);
  }

  static void quantize_row(const RowTask& t, int64_t row, const float* x) {
    int8_t* q = t.values + row * t.values_stride;
    const int64_t group = t.width / t.groups;
    float scale = t.scale_groups == 1 ? scale_of(t, x, t.width) : 0.0F;
    if (t.scale_groups == 1) t.scales[row] = scale;
    for (int64_t g = 0; g < t.groups; ++g) {
      if (t.scale_groups > 1) {
        scale = scale_of(t, x + g * group, group);
        t.scales[row * t.groups + g] = scale;
      }
      t.sums[row * t.groups + g] = quantize(t, x + g * group, group, scale, q + g * group);
    }
    for (int64_t i = t.width; i % 64 != 0; ++i) q[i] = 0;
  }

  // scratch: twice the width rounded up to 16.
  static void run(const RowTask& t, int64_t first, int64_t last, float* scratch) {
    const int64_t padded = (t.width + kLanes - 1) / kLanes * kLanes;
    for (int64_t row = first; row < last; ++row) {
      float* x = scratch;
      source(t, row, x);
      if (t.hadamard != nullptr) x = hadamard(*t.hadamard, x, scratch + padded, t.width);
      if (t.values != nullptr) {
        quantize_row(t, row, x);
      } else {
        __builtin_memcpy(t.y + row * t.y_stride, x, static_cast<uint64_t>(t.width) * sizeof(float));
      }
    }
  }
};

}  // namespace quarot::cpu
