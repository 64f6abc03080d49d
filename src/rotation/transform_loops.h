// The loops behind TransformKernels, for vectors of any width. Each of the files that include this
// is compiled for its own instruction set; all here is local to the file, and nothing else may be
// included, lest a function compiled for a newer machine stand in for its namesake.
#pragma once

#include <cstdint>
#include <utility>

#include "rotation/transform_kernels.h"

namespace quarot {
namespace {

template <typename T, int kBytes>
struct VectorOf {
  using Type __attribute__((vector_size(kBytes))) = T;
  static constexpr int kLanes = kBytes / sizeof(T);
};

// V is a vector of T, or T itself where too few elements are left to fill one.
template <typename V, typename T>
inline V load(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(V));
  return v;
}

template <typename V, typename T>
inline void store(T* p, const V& v) {
  __builtin_memcpy(p, &v, sizeof(V));
}

// Walsh–Hadamard among the lanes of one vector. Each lane adds its partner to itself or, the upper
// one of two, subtracts itself from its partner.
template <int kBytes, typename T>
struct Lanes {
  using V = typename VectorOf<T, kBytes>::Type;
  static constexpr int kLanes = VectorOf<T, kBytes>::kLanes;

  template <int kStride, int... kLane>
  static void stage(V& v, std::integer_sequence<int, kLane...>) {
    constexpr V kSigns = {((kLane & kStride) != 0 ? T{-1} : T{1})...};
    v = __builtin_shufflevector(v, v, (kLane ^ kStride)...) + v * kSigns;
  }

  template <int kStride = 1>
  static void all(V& v) {
    if constexpr (kStride < kLanes) {
      stage<kStride>(v, std::make_integer_sequence<int, kLanes>());
      all<2 * kStride>(v);
    }
  }
};

// Walsh–Hadamard over kRadix vectors `stride` apart.
template <int kRadix, typename V, bool kLanesToo, int kBytes, typename T>
inline void butterfly(T* x, int64_t stride) {
  V v[kRadix];
#pragma GCC unroll 8
  for (int i = 0; i < kRadix; ++i) {
    v[i] = load<V>(x + i * stride);
    if constexpr (kLanesToo) Lanes<kBytes, T>::all(v[i]);
  }
#pragma GCC unroll 3
  for (int h = 1; h < kRadix; h *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kRadix; ++i) {
      if ((i & h) != 0) continue;
      const V a = v[i];
      const V b = v[i + h];
      v[i] = a + b;
      v[i + h] = a - b;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRadix; ++i) store(x + i * stride, v[i]);
}

// log2(kRadix) stages, the first of them pairing elements `stride` apart.
template <int kRadix, int kBytes, typename T>
void pass(T* x, int64_t size, int64_t stride) {
  using V = typename VectorOf<T, kBytes>::Type;
  constexpr int64_t kLanes = VectorOf<T, kBytes>::kLanes;
  for (int64_t base = 0; base < size; base += kRadix * stride) {
    int64_t k = base;
    for (; k + kLanes <= base + stride; k += kLanes) {
      butterfly<kRadix, V, false, kBytes>(x + k, stride);
    }
    for (; k < base + stride; ++k) butterfly<kRadix, T, false, kBytes>(x + k, stride);
  }
}

// The stages among lanes, then log2(kRadix) more.
template <int kRadix, int kBytes, typename T>
void first_pass(T* x, int64_t size) {
  using V = typename VectorOf<T, kBytes>::Type;
  constexpr int64_t kLanes = VectorOf<T, kBytes>::kLanes;
  for (int64_t base = 0; base < size; base += kRadix * kLanes) {
    butterfly<kRadix, V, true, kBytes>(x + base, kLanes);
  }
}

template <typename T, int kBytes>
void walsh(T* x, int64_t size, int64_t count, int64_t stride) {
  constexpr int64_t kLanes = VectorOf<T, kBytes>::kLanes;
  int64_t left = count;  // what the remaining stages multiply to
  if (stride == 1 && left >= kLanes) {
    left /= kLanes;
    const int64_t radix = left >= 8 ? 8 : left;
    if (radix == 8) first_pass<8, kBytes>(x, size);
    if (radix == 4) first_pass<4, kBytes>(x, size);
    if (radix == 2) first_pass<2, kBytes>(x, size);
    if (radix == 1) first_pass<1, kBytes>(x, size);
    stride = kLanes * radix;
    left /= radix;
  }
  for (; left >= 8; left /= 8, stride *= 8) pass<8, kBytes>(x, size, stride);
  if (left == 4) pass<4, kBytes>(x, size, stride);
  if (left == 2) pass<2, kBytes>(x, size, stride);
}

// sign_product for as many columns as V has lanes.
template <int kLanes, typename V, typename T>
inline void sign_columns(const uint8_t* minus, int64_t m, int64_t width, T* x, T* sums) {
  for (int64_t g = 0; g < m / 4; ++g) {
    const T* in = x + 4 * g * width;
    const V x0 = load<V>(in);
    const V x1 = load<V>(in + width);
    const V x2 = load<V>(in + 2 * width);
    const V x3 = load<V>(in + 3 * width);
    const V low[4] = {x0 + x1, x1 - x0, x0 - x1, -x0 - x1};
    const V high[4] = {x2 + x3, x3 - x2, x2 - x3, -x2 - x3};
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p) {
      store(sums + (16 * g + p) * kLanes, low[p % 4] + high[p / 4]);
    }
  }
  for (int64_t i = 0; i < m; ++i) {
    const uint8_t* pattern = minus + i * (m / 4);
    V sum = load<V>(sums + pattern[0] * kLanes);
    for (int64_t g = 1; g < m / 4; ++g) sum += load<V>(sums + (16 * g + pattern[g]) * kLanes);
    store(x + i * width, sum);
  }
}

template <typename T, int kBytes>
void sign_product(const uint8_t* minus, int64_t m, int64_t width, T* x, T* scratch) {
  using V = typename VectorOf<T, kBytes>::Type;
  constexpr int64_t kLanes = VectorOf<T, kBytes>::kLanes;
  int64_t k = 0;
  for (; k + kLanes <= width; k += kLanes) sign_columns<kLanes, V>(minus, m, width, x + k, scratch);
  for (; k < width; ++k) sign_columns<1, T>(minus, m, width, x + k, scratch);
}

// kRows rows of y, as many columns as V has lanes.
template <int kRows, typename V, typename T>
inline void product_tile(const T* f, int64_t row_stride, int64_t col_stride, int64_t m,
                         int64_t width, const T* x, T* y) {
  V sums[kRows] = {};
  for (int64_t j = 0; j < m; ++j) {
    const V v = load<V>(x + j * width);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r] += f[r * row_stride + j * col_stride] * v;
  }
  for (int r = 0; r < kRows; ++r) store(y + r * width, sums[r]);
}

template <int kRows, int kBytes, typename T>
void product_rows(const T* f, int64_t row_stride, int64_t col_stride, int64_t m, int64_t width,
                  const T* x, T* y) {
  using V = typename VectorOf<T, kBytes>::Type;
  constexpr int64_t kLanes = VectorOf<T, kBytes>::kLanes;
  int64_t k = 0;
  for (; k + kLanes <= width; k += kLanes) {
    product_tile<kRows, V>(f, row_stride, col_stride, m, width, x + k, y + k);
  }
  for (; k < width; ++k) {
    product_tile<kRows, T>(f, row_stride, col_stride, m, width, x + k, y + k);
  }
}

template <typename T, int kBytes>
void product(const T* f, int64_t row_stride, int64_t col_stride, int64_t m, int64_t width,
             const T* x, T* y) {
  int64_t i = 0;
  for (; i + 8 <= m; i += 8) {
    product_rows<8, kBytes>(f + i * row_stride, row_stride, col_stride, m, width, x, y + i * width);
  }
  for (; i < m; ++i) {
    product_rows<1, kBytes>(f + i * row_stride, row_stride, col_stride, m, width, x, y + i * width);
  }
}

template <typename T, int kBytes>
TransformKernels<T> kernels_of() {
  return {walsh<T, kBytes>, sign_product<T, kBytes>, product<T, kBytes>};
}

}  // namespace
}  // namespace quarot
