#include "rotation/haar.h"

#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"

namespace quarot {

namespace {

// Columns of Q are independent: they are built some at a time, in a buffer that stays in cache.
constexpr int64_t kStrip = 32;

// The reflections I − u·uᵀ; that of step k acts on coordinates k … n−1 and is row k of `vectors`.
struct Reflections {
  BasicMatrix<double> vectors;
  std::vector<double> signs;  // those of R's diagonal
};

Reflections draw(int64_t n, uint64_t seed) {
  Random random(seed);
  Reflections drawn{BasicMatrix<double>(n, n, 0), std::vector<double>(static_cast<size_t>(n))};
  for (int64_t k = 0; k < n; ++k) {
    const auto u = drawn.vectors.row(k).subspan(static_cast<size_t>(k));
    double squares = 0;
    for (double& x : u) {
      x = random.normal();
      squares += x * x;
    }
    // x goes to −sign(x₀)‖x‖e₀; the one element of the last step goes to itself.
    const double norm = std::copysign(std::sqrt(squares), u[0]);
    if (k == n - 1) {
      drawn.signs[k] = std::copysign(1.0, u[0]);
      u[0] = 0;
      break;
    }
    drawn.signs[k] = -std::copysign(1.0, u[0]);
    u[0] += norm;
    const double scale = 1 / std::sqrt(norm * u[0]);  // u·uᵀ with ‖u‖² = 2
    for (double& x : u) x *= scale;
  }
  return drawn;
}

// q [n][kStrip] ← reflection k of q.
void reflect(std::span<const double> u, int64_t k, double* q) {
  double dot[kStrip] = {};
  for (int64_t i = k; i < static_cast<int64_t>(u.size()); ++i) {
    for (int64_t c = 0; c < kStrip; ++c) dot[c] += u[i] * q[i * kStrip + c];
  }
  for (int64_t i = k; i < static_cast<int64_t>(u.size()); ++i) {
    for (int64_t c = 0; c < kStrip; ++c) q[i * kStrip + c] -= u[i] * dot[c];
  }
}

}  // namespace

BasicMatrix<double> haar_random(int64_t n, uint64_t seed) {
  const Reflections reflections = draw(n, seed);
  BasicMatrix<double> result(n, n);
  parallel_for((n + kStrip - 1) / kStrip, 1, [&](int64_t first, int64_t last) {
    BasicMatrix<double> strip(n, kStrip);
    for (int64_t s = first; s < last; ++s) {
      const int64_t begin = s * kStrip;
      const int64_t count = std::min(kStrip, n - begin);
      std::ranges::fill(strip.elements(), 0.0);
      for (int64_t c = 0; c < count; ++c) strip(begin + c, c) = reflections.signs[begin + c];
      // Later reflections leave these columns alone: they are zero there.
      for (int64_t k = begin + count - 1; k >= 0; --k) {
        reflect(reflections.vectors.row(k), k, strip.data());
      }
      for (int64_t r = 0; r < n; ++r) {
        std::ranges::copy(strip.row(r).first(static_cast<size_t>(count)),
                          result.row(r).subspan(static_cast<size_t>(begin)).begin());
      }
    }
  });
  return result;
}

}  // namespace quarot
