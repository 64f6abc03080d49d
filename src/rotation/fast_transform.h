// A HadamardPlan made ready to run, in float and in double.
#pragma once

#include <cstdint>
#include <vector>

#include "rotation/hadamard_plan.h"
#include "rotation/transform_kernels.h"

namespace quarot {

// x ← H·x or Hᵀ·x in place for x [plan.n][inner], the factor H acting on the first index; unscaled:
// H is scale() times what is applied, so that one multiplication serves H and signs together.
class FastTransform {
 public:
  FastTransform(HadamardPlan plan, int64_t inner);

  const HadamardPlan& plan() const { return plan_; }
  int64_t inner() const { return inner_; }
  int64_t size() const { return plan_.n * inner_; }
  double scale() const { return scale_; }

  // How many elements of scratch apply() needs.
  template <typename T>
  int64_t scratch_size() const;

  template <typename T>
  void apply(T* x, T* scratch, bool transposed, const TransformKernels<T>& kernels) const;

 private:
  template <typename T>
  const std::vector<T>& factor() const;

  HadamardPlan plan_;
  int64_t inner_;
  double scale_;
  std::vector<float> float_factor_;                // of a factor that is not made of signs
  std::vector<uint8_t> minus_, minus_transposed_;  // of one that is: see sign_product
};

}  // namespace quarot
