#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {
namespace {

// The tile loop in plain C++, for machines that have none of the rest.
struct Scalar {
  static constexpr int kLanes = 8;
  struct Int {
    uint32_t v[kLanes];  // sums modulo 2^32, or four bytes each
  };
  struct Float {
    float v[kLanes];
  };
  static constexpr int kVectors = 1;
  static constexpr int kRows = 2;
  template <int kBits>
  static constexpr int kPlanes = 1;
  static int64_t exact_blocks(int) { return INT64_MAX; }

  template <typename V, typename F>
  static V each(F f) {
    V r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = f(i);
    return r;
  }
  static Int load_int(const void* p) {
    Int r;
    __builtin_memcpy(r.v, p, sizeof r.v);
    return r;
  }
  template <int kBits>
  static void load(const uint8_t* p, int, Int& lo, Int& hi) {
    lo = load_int(p);
    if constexpr (kBits == 4) {
      hi = each<Int>([&](int i) { return lo.v[i] >> 4 & 0x0f0f0f0fU; });
      lo = each<Int>([&](int i) { return lo.v[i] & 0x0f0f0f0fU; });
    } else {
      hi = load_int(p + 128);
    }
  }
  static Int broadcast(const int8_t* p) {
    uint32_t four = 0;
    __builtin_memcpy(&four, p, 4);
    return each<Int>([&](int) { return four; });
  }
  static int32_t byte(uint32_t x, int i) { return static_cast<uint8_t>(x >> (8 * i)); }
  static int32_t signed_byte(uint32_t x, int i) { return static_cast<int8_t>(x >> (8 * i)); }
  static Int dot(const Int& sum, const Int& w, const Int& a) {
    return each<Int>([&](int i) {
      int32_t four = 0;
      for (int j = 0; j < 4; ++j) four += byte(w.v[i], j) * signed_byte(a.v[i], j);
      return sum.v[i] + static_cast<uint32_t>(four);
    });
  }
  static Int widen(const Int& total, const Int& sum, int) {
    return each<Int>([&](int i) { return total.v[i] + sum.v[i]; });
  }
  static Int load_sums(const int32_t* p) { return load_int(p); }
  static void store_sums(int32_t* p, const Int& x) { __builtin_memcpy(p, x.v, sizeof x.v); }
  static Int zero() { return {}; }
  static Int splat(int32_t x) {
    return each<Int>([&](int) { return static_cast<uint32_t>(x); });
  }
  static Float splat(float x) {
    return each<Float>([&](int) { return x; });
  }
  static Int sub(const Int& x, const Int& y) {
    return each<Int>([&](int i) { return x.v[i] - y.v[i]; });
  }
  static Float to_float(const Int& x) {
    return each<Float>([&](int i) { return static_cast<float>(static_cast<int32_t>(x.v[i])); });
  }
  static Float mul(const Float& x, const Float& y) {
    return each<Float>([&](int i) { return x.v[i] * y.v[i]; });
  }
  static Float add(const Float& x, const Float& y) {
    return each<Float>([&](int i) { return x.v[i] + y.v[i]; });
  }
  static Float load_float(const float* p) {
    return each<Float>([&](int i) { return p[i]; });
  }
  static void store(float* p, const Float& x) { __builtin_memcpy(p, x.v, sizeof x.v); }
  static Int keep(Int x) {
    asm volatile("" : "+m"(x));
    return x;
  }
};

bool always() { return true; }

}  // namespace

const Kernels kScalar = {
    .name = "scalar",
    .available = always,
    .gemm = gemm_range<Scalar>,
    .floats = &kScalarFloats,
    .dot_peak = dot_peak<Scalar>,
};

}  // namespace quarot::cpu
