// What the row operations mean: the operation and the rotation in float64 on the CPU, the quantiser
// in float32 as DESIGN.md section 4 states it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace quarot::cuda {

// x ← (F ⊗ Walsh(2^log2) ⊗ I_inner) x, orthonormal if F is.
inline void rotate_reference(std::span<const double> factor, int m, int log2, int inner,
                             std::vector<double>& x) {
  const int walsh = 1 << log2;
  const int columns = walsh * inner;
  for (int step = 1; step < walsh; step *= 2) {
    for (int r = 0; r < m * walsh; ++r) {
      if ((r & step) != 0) continue;
      for (int c = 0; c < inner; ++c) {
        double& a = x[static_cast<size_t>(r) * inner + c];
        double& b = x[static_cast<size_t>(r + step) * inner + c];
        const double sum = (a + b) * std::sqrt(0.5);
        b = (a - b) * std::sqrt(0.5);
        a = sum;
      }
    }
  }
  if (m == 1) return;
  std::vector<double> y(x.size());
  for (int i = 0; i < m; ++i) {
    for (int k = 0; k < m; ++k) {
      for (int c = 0; c < columns; ++c)
        y[i * columns + c] += factor[i * m + k] * x[k * columns + c];
    }
  }
  x = y;
}

inline double silu_reference(double x) { return x / (1 + std::exp(-x)); }

// x / √(mean x² + eps) · gain.
inline void norm_reference(std::vector<double>& x, const float* gain, double eps) {
  double squares = 0;
  for (const double e : x) squares += e * e;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= factor * (gain != nullptr ? gain[i] : 1);
}

struct QuantizedRow {
  std::vector<int> codes;
  float scale = 1;
};
inline QuantizedRow quantize_reference(const std::vector<double>& row, int bits, float clip) {
  const int highest = (1 << (bits - 1)) - 1;
  float top = 0;
  for (const double e : row) top = std::max(top, std::abs(static_cast<float>(e)));
  QuantizedRow out;
  if (top > 0) out.scale = clip * top / static_cast<float>(highest);
  for (const double e : row) {
    const float q = std::nearbyint(static_cast<float>(e) / out.scale);
    out.codes.push_back(static_cast<int>(
        std::clamp(q, static_cast<float>(-highest - 1), static_cast<float>(highest))));
  }
  return out;
}

// The codes of one row as the kernels store them.
inline std::vector<int> unpack_row(const uint8_t* row, int n, bool int4) {
  std::vector<int> codes(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    if (!int4) {
      codes[i] = static_cast<int8_t>(row[i]);
    } else {
      const int nibble = row[i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 0xf;
      codes[i] = nibble < 8 ? nibble : nibble - 16;
    }
  }
  return codes;
}

}  // namespace quarot::cuda
