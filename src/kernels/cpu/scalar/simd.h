// 16 floats in plain C++: see rows_isa.h.
#pragma once

#include <cstdint>

namespace quarot::cpu {
namespace {

struct F16Scalar {
  static constexpr int kLanes = 16;
  struct F {
    float v[kLanes];
  };
  using Sum = int32_t;

  template <typename Lane>
  static F each(const Lane& lane) {
    F r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = lane(i);
    return r;
  }
  static F splat(float x) {
    return each([&](int) { return x; });
  }
  static F load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static void store(float* p, const F& x) { __builtin_memcpy(p, x.v, sizeof x.v); }
  static F add(const F& x, const F& y) {
    return each([&](int i) { return x.v[i] + y.v[i]; });
  }
  static F sub(const F& x, const F& y) {
    return each([&](int i) { return x.v[i] - y.v[i]; });
  }
  static F mul(const F& x, const F& y) {
    return each([&](int i) { return x.v[i] * y.v[i]; });
  }
  static F div(const F& x, const F& y) {
    return each([&](int i) { return x.v[i] / y.v[i]; });
  }
  static F max(const F& x, const F& y) {
    return each([&](int i) { return x.v[i] > y.v[i] ? x.v[i] : y.v[i]; });
  }
  static F min(const F& x, const F& y) {
    return each([&](int i) { return x.v[i] < y.v[i] ? x.v[i] : y.v[i]; });
  }
  static F abs(const F& x) {
    return each([&](int i) { return __builtin_fabsf(x.v[i]); });
  }
  static F negate(const F& x) {
    return each([&](int i) { return -x.v[i]; });
  }
  // Adding 1.5·2^23 leaves no room for a fraction: right for |x| < 2^22, all that is asked for
  // here.
  static F round(const F& x) {
    return each([&](int i) { return (x.v[i] + 0x1.8p23F) - 0x1.8p23F; });
  }
  static F not_nan(const F& x) {
    return each([&](int i) { return x.v[i] == x.v[i] ? x.v[i] : 0.0F; });
  }
  static F pow2(const F& n) {
    return each([&](int i) {
      const int32_t bits = (static_cast<int32_t>(n.v[i]) + 127) << 23;
      float power;
      __builtin_memcpy(&power, &bits, sizeof power);
      return power;
    });
  }
  static float sqrt1(float x) { return __builtin_sqrtf(x); }

  template <int kStride>
  static F swap(const F& x) {
    return each([&](int i) { return x.v[i ^ kStride]; });
  }
  template <int kStride>
  static F negate_odd(const F& x) {
    return each([&](int i) { return (i & kStride) != 0 ? -x.v[i] : x.v[i]; });
  }
  static float sum(F x) {
    x = add(x, swap<8>(x));
    x = add(x, swap<4>(x));
    x = add(x, swap<2>(x));
    return x.v[0] + x.v[1];
  }
  static float largest(const F& x) {
    float largest = x.v[0];
    for (const float v : x.v) largest = v > largest ? v : largest;
    return largest;
  }

  static constexpr bool kWide = false;
  static constexpr int kQueries = 2;
  struct Words {
    uint32_t v[kLanes];
  };
  static float first(const F& x) { return x.v[0]; }
  static F fma(const F& x, const F& y, const F& z) {
    return each([&](int i) { return __builtin_fmaf(x.v[i], y.v[i], z.v[i]); });
  }
  static F keep_above(const F& x, const F& y, float limit) {
    return each([&](int i) { return y.v[i] > limit ? x.v[i] : 0.0F; });
  }
  static F load_bytes(const uint8_t* p) {
    return each([&](int i) { return static_cast<float>(p[i]); });
  }
  static Words load_words(const uint32_t* p) {
    Words w;
    __builtin_memcpy(w.v, p, sizeof w.v);
    return w;
  }
  static F as_float(const Words& x) {
    F f;
    __builtin_memcpy(f.v, x.v, sizeof f.v);
    return f;
  }
  static Words no_words() { return {}; }
  template <uint32_t kMask>
  static Words bits(Words x) {
    for (uint32_t& v : x.v) v &= kMask;
    return x;
  }
  template <uint32_t kMask>
  static Words flip(Words x) {
    for (uint32_t& v : x.v) v ^= kMask;
    return x;
  }
  template <int kByte>
  static Words top_byte(Words x) {
    for (uint32_t& v : x.v) v = v >> (8 * kByte) << 24;
    return x;
  }
  static F to_float(const Words& x) {
    return each([&](int i) { return static_cast<float>(static_cast<int32_t>(x.v[i])); });
  }
  template <int kShift>
  static Words shr(Words x) {
    for (uint32_t& v : x.v) v >>= kShift;
    return x;
  }
  template <int kShift>
  static Words shl_or(Words x, const Words& y) {
    for (int i = 0; i < kLanes; ++i) x.v[i] |= y.v[i] << kShift;
    return x;
  }
  template <int kBits>
  static F low_bits(const Words& x) {
    return each([&](int i) { return static_cast<float>(x.v[i] & ((1U << kBits) - 1)); });
  }

  static Sum no_sum() { return 0; }
  static Sum store_bytes(int8_t* p, const F& x, Sum sum) {
    const F q = round(x);
    for (int i = 0; i < kLanes; ++i) {
      p[i] = static_cast<int8_t>(q.v[i]);
      sum += p[i];
    }
    return sum;
  }
  static int32_t total(Sum sum) { return sum; }
};

}  // namespace
}  // namespace quarot::cpu
