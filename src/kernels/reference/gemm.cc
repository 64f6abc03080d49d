#include "kernels/reference/gemm.h"

namespace quarot::reference {
namespace {

int32_t dot(const int8_t* a, const int8_t* w, int64_t count) {
  int32_t sum = 0;
  for (int64_t k = 0; k < count; ++k) sum += int32_t{a[k]} * int32_t{w[k]};
  return sum;
}

float output(const Gemm& g, int64_t t, int64_t n) {
  const int64_t group = g.group == 0 ? g.inputs : g.group;
  const int64_t groups = g.inputs / group;
  float y = 0;
  for (int64_t i = 0; i < groups; ++i) {
    const float sa = g.a_scales[g.a_scale_groups == 1 ? t : t * groups + i];
    const float sw = g.w_scales[n * groups + i];
    const int32_t sum = dot(g.a + t * g.inputs + i * group, g.w + n * g.inputs + i * group, group);
    y += (static_cast<float>(sum) * sa) * sw;
  }
  return g.bias != nullptr ? y + g.bias[n] : y;
}

}  // namespace

void gemm(const Gemm& g) {
  for (int64_t t = 0; t < g.rows; ++t) {
    for (int64_t n = 0; n < g.outputs; ++n) {
      float& y = g.y[t * g.outputs + n];
      y = g.accumulate ? y + output(g, t, n) : output(g, t, n);
    }
  }
}

}  // namespace quarot::reference
