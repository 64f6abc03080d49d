#include "quant/clip_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/simd.h"
#include "quant/grid.h"

namespace quarot {

namespace {

constexpr double kNorm = 2.4;
constexpr size_t kBlock = 256;
constexpr size_t kLanes = 16;

// One third-order Householder step towards z = base^(−1/5).
float refine(float z, float base) {
  const float z2 = z * z;
  const float h = 1.0F - base * (z2 * z2 * z);
  return z + z * h * (0.2F + 0.12F * h);
}

// |r|^2.4 = (|r|·z)³ with z = |r|^(−1/5), from a first guess by the exponent bits (as in the famous
// inverse square root) that is 3 % off at most. Only operations that every vector unit has, no
// branch; relative error below 1e-6 for |r| in [1e-6, 2^20]. Below, the result is too small to
// matter: adding 2^-40 keeps z⁵ from overflowing, and 0 stays 0.
float power_2_4(float r) {
  r = std::fabs(r);
  const float base = r + 0x1p-40F;
  constexpr float kGuess = 1.2779e9F;  // about 1.2·127·2^23, found by scanning for the least error
  const auto bits = static_cast<float>(std::bit_cast<int32_t>(base));
  const float guess = std::bit_cast<float>(static_cast<int32_t>(kGuess - 0.2F * bits));
  const float root = r * refine(refine(guess, base), base);
  return root * root * root;
}

// Σ|w/scale − level|^2.4, or infinity as soon as it passes `limit`: the terms are not negative. The
// lanes fix the order of summation whatever the vector width.
QUAROT_SIMD_CLONES double residual(const Levels& levels, std::span<const float> w, double limit) {
  double sum = 0;
  for (size_t first = 0; first < w.size(); first += kBlock) {
    const size_t count = std::min(kBlock, w.size() - first);
    const float* data = w.data() + first;
    alignas(64) float powers[kBlock] = {};
    for (size_t i = 0; i < count; ++i) {
      const float t = levels.in_units(data[i]);
      powers[i] = t - levels.round(t);
    }
    for (size_t i = 0; i < count; ++i) powers[i] = power_2_4(powers[i]);
    const size_t padded = (count + kLanes - 1) / kLanes * kLanes;
    for (size_t i = kLanes; i < padded; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) powers[lane] += powers[i + lane];
    }
    for (size_t lane = 0; lane < kLanes; ++lane) sum += double{powers[lane]};
    if (sum > limit) return std::numeric_limits<double>::infinity();
  }
  return sum;
}

}  // namespace

float clip_candidate(int i) { return static_cast<float>(1.0 - i / 100.0); }

Grid search_clip(std::span<const float> w, FunctionRef<Grid(float)> grid_of) {
  Grid best = grid_of(clip_candidate(0));
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kClipCandidates; ++i) {
    const Grid grid = grid_of(clip_candidate(i));
    const double unit = std::pow(double{grid.scale}, kNorm);
    const double error = unit * residual(Levels(grid), w, least / unit);
    if (error < least) {
      least = error;
      best = grid;
    }
  }
  return best;
}

}  // namespace quarot
