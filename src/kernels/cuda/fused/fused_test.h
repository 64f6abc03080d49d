// What the tests of the fused operations share.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "kernels/cuda/bench.cuh"
#include "kernels/cuda/fused/fused.h"
#include "rotation/hadamard.h"

namespace quarot::cuda {

inline bool has_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

inline std::mt19937 generator(1);

inline std::vector<float> normals(size_t count, float loud = 1) {
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& e : x) e = normal(generator);
  for (size_t i = 3; i < count; i += 701) x[i] *= loud;
  return x;
}

// Rows on the device in either type, and the floats they are.
struct DeviceRows {
  DeviceRows(std::vector<float> values, Element element) : floats(std::move(values)) {
    if (element == Element::kFloat32) {
      single.emplace(floats);
      return;
    }
    std::vector<__nv_bfloat16> halves;
    for (float& e : floats) {
      halves.push_back(__float2bfloat16_rn(e));
      e = __bfloat162float(halves.back());
    }
    brain.emplace(halves);
  }
  void* get() { return single ? static_cast<void*>(single->get()) : brain->get(); }
  std::vector<float> floats;
  std::optional<DeviceBuffer<float>> single;
  std::optional<DeviceBuffer<__nv_bfloat16>> brain;
};

// m × m: random signs over √m, or any numbers of that size: the kernels care for linearity only.
inline std::vector<double> random_factor(int m, bool signs) {
  std::vector<double> factor(static_cast<size_t>(m) * m);
  std::normal_distribution<double> normal;
  for (double& e : factor) {
    e = normal(generator) / std::sqrt(m);
    if (signs) e = std::copysign(1 / std::sqrt(m), e);
  }
  return factor;
}

// The Hadamard matrix that the program builds, orthonormal.
inline std::vector<double> hadamard_factor(int m) {
  const SignMatrix matrix = hadamard_matrix(m);
  std::vector<double> factor;
  for (const int8_t sign : matrix.elements()) factor.push_back(sign / std::sqrt(m));
  return factor;
}

}  // namespace quarot::cuda
