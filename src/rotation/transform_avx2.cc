#include "rotation/transform_kernels.h"
#include "rotation/transform_loops.h"

namespace quarot::avx2 {

template <typename T>
TransformKernels<T> kernels() {
  return kernels_of<T, 32>();
}
template TransformKernels<float> kernels();
template TransformKernels<double> kernels();

}  // namespace quarot::avx2
