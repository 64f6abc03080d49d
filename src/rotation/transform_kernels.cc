#include "rotation/transform_kernels.h"

namespace quarot {

template <typename T>
TransformKernels<T> transform_kernels([[maybe_unused]] VectorWidth width) {
#if defined(__x86_64__)
  if (width == VectorWidth::kAvx512) return avx512::kernels<T>();
  if (width == VectorWidth::kAvx2) return avx2::kernels<T>();
#endif
  return baseline::kernels<T>();
}

template <typename T>
TransformKernels<T> transform_kernels() {
  return transform_kernels<T>(vector_width());
}

template TransformKernels<float> transform_kernels<float>(VectorWidth);
template TransformKernels<double> transform_kernels<double>(VectorWidth);
template TransformKernels<float> transform_kernels<float>();
template TransformKernels<double> transform_kernels<double>();

}  // namespace quarot
