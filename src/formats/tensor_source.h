// What every file of weights looks like from above: named tensors that can be read as float32, one
// at a time, so that a checkpoint larger than memory can be walked through.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "quarot/status.h"
#include "tensor/matrix.h"

namespace quarot {

struct TensorInfo {
  std::string name;
  std::string type;            // as the format spells it: "BF16", "Q4_1"
  std::vector<int64_t> shape;  // outermost dimension first, as in PyTorch; every dimension ≥ 0
  int64_t bytes = 0;           // as stored

  int64_t rows() const;  // product of all dimensions but the last; 1 for a vector or a scalar
  int64_t cols() const;  // the last dimension; 1 for a scalar
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const std::filesystem::path& path() const = 0;
  virtual const std::vector<TensorInfo>& tensors() const = 0;  // in file order

  // nullptr if there is none of that name. O(1).
  virtual const TensorInfo* find(std::string_view name) const = 0;

  // The tensor converted to float32, [rows(), cols()]. Errors: kNotFound; kUnsupported for an
  // element type that is no number here. The file's pages are dropped from memory again afterwards.
  virtual Result<Matrix> read(std::string_view name) const = 0;

  // The same, `count` rows from row `first` on: for the one matrix that need not be read whole, the
  // embedding.
  virtual Result<Matrix> read_rows(std::string_view name, int64_t first, int64_t count) const = 0;

  // An I32 tensor as the integers it holds: packed words. Only safetensors has such.
  virtual Result<BasicMatrix<int32_t>> read_int32(std::string_view name) const;
};

}  // namespace quarot
