#include "rotation/transform_kernels.h"

namespace quarot {

namespace {

VectorWidth widest() {
  if (available(VectorWidth::kAvx512)) return VectorWidth::kAvx512;
  if (available(VectorWidth::kAvx2)) return VectorWidth::kAvx2;
  return VectorWidth::kBaseline;
}

}  // namespace

bool available(VectorWidth width) {
#if defined(__x86_64__)
  if (width == VectorWidth::kAvx512) return __builtin_cpu_supports("avx512f") != 0;
  if (width == VectorWidth::kAvx2) return __builtin_cpu_supports("avx2") != 0;
#endif
  return width == VectorWidth::kBaseline;
}

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
  static const VectorWidth width = widest();
  return transform_kernels<T>(width);
}

template TransformKernels<float> transform_kernels<float>(VectorWidth);
template TransformKernels<double> transform_kernels<double>(VectorWidth);
template TransformKernels<float> transform_kernels<float>();
template TransformKernels<double> transform_kernels<double>();

}  // namespace quarot
