#include "formats/tensor_source.h"

namespace quarot {

int64_t TensorInfo::rows() const {
  int64_t product = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) product *= shape[i];
  return product;
}

int64_t TensorInfo::cols() const { return shape.empty() ? 1 : shape.back(); }

}  // namespace quarot
