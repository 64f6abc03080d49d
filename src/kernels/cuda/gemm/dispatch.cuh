// The output's type, from a value to a template argument.
#pragma once

#include <type_traits>

#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/gemm/gemm.h"
#include "quarot/status.h"

namespace quarot::cuda {

// body(std::type_identity<Out>{}) → Status
template <typename Body>
Status with_output_type(GemmOutput type, Body&& body) {
  switch (type) {
    case GemmOutput::kBFloat16:
      return body(std::type_identity<__nv_bfloat16>{});
    case GemmOutput::kFloat16:
      return body(std::type_identity<__half>{});
    case GemmOutput::kInt32:
      return body(std::type_identity<int32_t>{});
    default:
      return body(std::type_identity<float>{});
  }
}

inline Epilogue epilogue_of(const Gemm& p) {
  return {p.activation_scales,   p.weight_scales,      p.bias, p.residual, p.output,
          static_cast<int>(p.m), static_cast<int>(p.n)};
}

}  // namespace quarot::cuda
