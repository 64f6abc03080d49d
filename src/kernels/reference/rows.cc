#include "kernels/reference/rows.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <vector>

namespace quarot::reference {
namespace {

float round_half_even(float x) { return std::nearbyint(x); }

float sum_of_squares(const float* x, int64_t width) {
  float sums[16] = {};
  for (int64_t i = 0; i < width; ++i) sums[i % 16] += x[i] * x[i];
  for (int half = 8; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

std::vector<float> source_row(const RowTask& t, int64_t row) {
  const float* x = t.x + row * t.x_stride;
  std::vector<float> y(x, x + t.width);
  if (t.source == RowSource::kRmsNorm) {
    const float mean = sum_of_squares(x, t.width) / static_cast<float>(t.width);
    const float r = 1.0F / std::sqrt(mean + t.eps);
    for (int64_t i = 0; i < t.width; ++i) {
      y[i] = x[i] * r;
      if (t.gain != nullptr) y[i] *= t.gain[i];
    }
  } else if (t.source == RowSource::kSwiGlu) {
    const float* up = t.up + row * t.up_stride;
    for (int64_t i = 0; i < t.width; ++i) y[i] = x[i] / (1.0F + exp(-x[i])) * up[i];
  }
  return y;
}

float scale_of(const float* x, int64_t count, int bits, float clip) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(x[i]);
    if (magnitude > largest) largest = magnitude;
  }
  const auto levels = static_cast<float>((1 << (bits - 1)) - 1);
  const float scale = clip * std::min(largest, FLT_MAX / 2) / levels;
  return scale >= FLT_MIN ? scale : 1.0F;
}

int8_t quantize(float x, float scale, int bits) {
  const float t = x / scale;
  const auto highest = static_cast<float>((1 << (bits - 1)) - 1);
  return static_cast<int8_t>(std::isnan(t) ? 0.0F
                                           : round_half_even(std::clamp(t, -highest - 1, highest)));
}

void quantize_row(const RowTask& t, int64_t row, const float* x) {
  int8_t* q = t.values + row * t.values_stride;
  const int64_t scale_group = t.width / t.scale_groups;
  for (int64_t g = 0; g < t.scale_groups; ++g) {
    const float scale = scale_of(x + g * scale_group, scale_group, t.bits, t.clip);
    t.scales[row * t.scale_groups + g] = scale;
    for (int64_t i = g * scale_group; i < (g + 1) * scale_group; ++i) {
      q[i] = quantize(x[i], scale, t.bits);
    }
  }
  for (int64_t i = t.width; i % 64 != 0; ++i) q[i] = 0;
  for (int64_t g = 0; g < t.groups; ++g) {
    int32_t& sum = t.sums[row * t.groups + g];
    sum = 0;
    for (int64_t i = 0; i < t.width / t.groups; ++i) sum += q[g * (t.width / t.groups) + i];
  }
}

// x [m][columns] ← factor·x.
void apply_factor(const HadamardTask& h, float* x, int64_t columns) {
  std::vector<float> y(static_cast<size_t>(h.m * columns));
  for (int64_t i = 0; i < h.m; ++i) {
    for (int64_t c = 0; c < columns; ++c) {
      float sum = 0;
      for (int64_t j = 0; j < h.m; ++j) {
        sum = std::fma(h.factor[i * h.m + j], x[j * columns + c], sum);
      }
      y[i * columns + c] = sum;
    }
  }
  std::ranges::copy(y, x);
}

}  // namespace

float exp(float x) {
  x = std::min(std::max(x, -87.0F), 87.0F);
  const float n = round_half_even(x * 1.44269504F);
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;  // ln 2 in two parts
  float p = 1.9841270e-4F;
  for (const float c :
       {1.3888889e-3F, 8.3333333e-3F, 4.1666667e-2F, 1.6666667e-1F, 0.5F, 1.0F, 1.0F}) {
    p = p * r + c;
  }
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

void hadamard(const HadamardTask& h, float* x, int64_t width) {
  const int64_t columns = h.inner << h.log2;
  for (int64_t part = 0; part < width; part += columns) {
    float* v = x + part;
    for (int64_t stride = h.inner; stride < columns; stride *= 2) {
      for (int64_t i = 0; i < columns; ++i) {
        if (i / stride % 2 != 0) continue;
        const float a = v[i];
        const float b = v[i + stride];
        v[i] = a + b;
        v[i + stride] = a - b;
      }
    }
  }
  for (int64_t block = 0; h.m > 1 && block < width; block += h.length()) {
    apply_factor(h, x + block, columns);
  }
  for (int64_t i = 0; i < width; ++i) x[i] *= h.scale;
}

void rows(const RowTask& t) {
  for (int64_t row = 0; row < t.rows; ++row) {
    std::vector<float> x = source_row(t, row);
    if (t.hadamard != nullptr) hadamard(*t.hadamard, x.data(), t.width);
    if (t.values != nullptr) {
      quantize_row(t, row, x.data());
    } else {
      std::ranges::copy(x, t.y + row * t.y_stride);
    }
  }
}

}  // namespace quarot::reference
