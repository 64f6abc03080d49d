#include "tensor/dtype.h"

#include <array>
#include <cstddef>

namespace quarot {

namespace {

struct DtypeRow {
  Dtype dtype;
  size_t size;
  std::string_view name;
};

constexpr std::array kDtypes = {
    DtypeRow{Dtype::kF64, 8, "F64"}, DtypeRow{Dtype::kF32, 4, "F32"},
    DtypeRow{Dtype::kF16, 2, "F16"}, DtypeRow{Dtype::kBF16, 2, "BF16"},
    DtypeRow{Dtype::kI64, 8, "I64"}, DtypeRow{Dtype::kI32, 4, "I32"},
    DtypeRow{Dtype::kI16, 2, "I16"}, DtypeRow{Dtype::kI8, 1, "I8"},
    DtypeRow{Dtype::kU8, 1, "U8"},   DtypeRow{Dtype::kBool, 1, "BOOL"},
};

}  // namespace

size_t dtype_size(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].size; }

std::string_view dtype_name(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace quarot
