#include "rotation/fast_transform.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace quarot {

namespace {

// The patterns that sign_product reads, of the factor or of its transpose.
std::vector<uint8_t> sign_patterns(const HadamardPlan& plan, bool transposed) {
  std::vector<uint8_t> patterns(static_cast<size_t>(plan.m * plan.m / 4));
  for (int64_t i = 0; i < plan.m; ++i) {
    for (int64_t j = 0; j < plan.m; ++j) {
      const double entry = plan.factor[transposed ? j * plan.m + i : i * plan.m + j];
      const int bit = entry < 0 ? 1 << (j % 4) : 0;
      uint8_t& pattern = patterns[(i * plan.m + j) / 4];
      pattern = static_cast<uint8_t>(pattern | bit);
    }
  }
  return patterns;
}

}  // namespace

FastTransform::FastTransform(HadamardPlan plan, int64_t inner)
    : plan_(std::move(plan)), inner_(inner) {
  if (plan_.m > 1 && plan_.is_hadamard) {
    minus_ = sign_patterns(plan_, false);
    minus_transposed_ = sign_patterns(plan_, true);
  } else {
    float_factor_.assign(plan_.factor.begin(), plan_.factor.end());
  }
  const int64_t unscaled = plan_.is_hadamard ? plan_.n : plan_.n / plan_.m;
  scale_ = 1 / std::sqrt(static_cast<double>(unscaled));
}

template <typename T>
const std::vector<T>& FastTransform::factor() const {
  if constexpr (std::is_same_v<T, float>) {
    return float_factor_;
  } else {
    return plan_.factor;
  }
}

template <typename T>
int64_t FastTransform::scratch_size() const {
  constexpr int64_t kMaxLanes = 64 / sizeof(T);  // see sign_product
  if (plan_.m == 1) return 0;
  return plan_.is_hadamard ? 4 * plan_.m * kMaxLanes : size();
}

template <typename T>
void FastTransform::apply(T* x, T* scratch, bool transposed,
                          const TransformKernels<T>& kernels) const {
  const int64_t m = plan_.m;
  // Walsh matrices are symmetric and act on another index than the factor, so their order is free.
  kernels.walsh(x, size(), int64_t{1} << plan_.log2, inner_);
  if (m == 1) return;
  const int64_t width = size() / m;
  if (plan_.is_hadamard) {
    kernels.sign_product((transposed ? minus_transposed_ : minus_).data(), m, width, x, scratch);
    return;
  }
  std::copy_n(x, size(), scratch);
  const T* f = factor<T>().data();
  kernels.product(f, transposed ? 1 : m, transposed ? m : 1, m, width, scratch, x);
}

template int64_t FastTransform::scratch_size<float>() const;
template int64_t FastTransform::scratch_size<double>() const;
template void FastTransform::apply(float*, float*, bool, const TransformKernels<float>&) const;
template void FastTransform::apply(double*, double*, bool, const TransformKernels<double>&) const;

}  // namespace quarot
