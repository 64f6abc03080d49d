#include "rotation/transform_kernels.h"
#include "rotation/transform_loops.h"

namespace quarot::baseline {

template <typename T>
TransformKernels<T> kernels() {
  return kernels_of<T, 16>();
}
template TransformKernels<float> kernels();
template TransformKernels<double> kernels();

}  // namespace quarot::baseline
