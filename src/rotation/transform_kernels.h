// The inner loops of the fast transforms, one set for each width of vector the machine may have.
// Every set adds the same numbers in the same order, so the results are the same bits.
#pragma once

#include <cstdint>

#include "base/vector_width.h"

namespace quarot {

template <typename T>
struct TransformKernels {
  // x ← Walsh–Hadamard, unscaled, along the middle index of x [size/(count·stride)][count][stride],
  // count a power of two.
  void (*walsh)(T* x, int64_t size, int64_t count, int64_t stride);

  // x ← S·x for the m × m matrix S of ±1, x [m][width], m a multiple of 4. Bit b of
  // minus[i·m/4 + g] is set where S(i, 4g + b) is −1. scratch holds 4·m vectors of 64 bytes.
  //
  // Four Russians (Arlazarov, Dinic, Kronrod and Faradzhev 1970): the 16 signed sums of every four
  // inputs are made once, after which an output costs m/4 additions instead of m.
  void (*sign_product)(const uint8_t* minus, int64_t m, int64_t width, T* x, T* scratch);

  // y ← F·x, F(i, j) = f[i·row_stride + j·col_stride], m × m; x and y [m][width], distinct.
  void (*product)(const T* f, int64_t row_stride, int64_t col_stride, int64_t m, int64_t width,
                  const T* x, T* y);
};

// T is float or double; the width must be available.
template <typename T>
TransformKernels<T> transform_kernels(VectorWidth width);

// Of vector_width().
template <typename T>
TransformKernels<T> transform_kernels();

// What each width's file defines, for float and double.
namespace baseline {
template <typename T>
TransformKernels<T> kernels();
}
namespace avx2 {
template <typename T>
TransformKernels<T> kernels();
}
namespace avx512 {
template <typename T>
TransformKernels<T> kernels();
}

}  // namespace quarot
