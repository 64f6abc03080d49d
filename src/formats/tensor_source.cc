#include "formats/tensor_source.h"

#include "base/error.h"

namespace quarot {

int64_t TensorInfo::rows() const {
  int64_t product = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) product *= shape[i];
  return product;
}

int64_t TensorInfo::cols() const { return shape.empty() ? 1 : shape.back(); }

Result<BasicMatrix<int32_t>> TensorSource::read_int32(std::string_view name) const {
  return error(ErrorCode::kUnsupported, "{}: tensor {} cannot be read as packed integers",
               path().string(), name);
}

}  // namespace quarot
