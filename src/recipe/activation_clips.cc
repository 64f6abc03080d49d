#include "recipe/activation_clips.h"

#include <fmt/format.h>

#include <limits>

#include "base/random.h"
#include "runtime/vector_math.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr int kCandidates = 9;
constexpr float kStep = 0.05F;
constexpr int64_t kCombinations = 128;

// All rows of the weights at a site, dealt out to a few sums with random signs: a count sketch
// (Charikar et al. 2002), which keeps the expected squared norm of W·e. Fewer rows stay alone.
Matrix combine_outputs(const Recipe& recipe, int64_t index, Space site, const Layer& layer) {
  Random random(recipe.seed, fmt::format("clip ratios {} {}", index, space_name(site)));
  Matrix sums(kCombinations, layer[first_reader(site)].weight.cols(), 0.0F);
  int64_t next = 0;
  for (const Role role : kRoles) {
    if (spaces_of(role).input != site) continue;
    const Matrix& weight = layer[role].weight;
    for (int64_t r = 0; r < weight.rows(); ++r, next = (next + 1) % kCombinations) {
      if (random.sign() > 0) {
        add(weight.row(r), sums.row(next));
      } else {
        subtract(weight.row(r), sums.row(next));
      }
    }
  }
  return sums;
}

double squared_norm(const Matrix& matrix) {
  double sum = 0;
  for (const float x : matrix.elements()) sum += double{x} * x;
  return sum;
}

}  // namespace

SiteClips search_clips(const Recipe& recipe, int64_t index, const Layer& layer,
                       const SiteSamples& inputs) {
  SiteClips clips;
  clips.fill(1);
  const Precision& precision = recipe.precision;
  for (const Space site : kSites) {
    const size_t i = site_index(site);
    const Matrix outputs = combine_outputs(recipe, index, site, layer);
    Matrix change(inputs[i].rows(), outputs.rows());
    double least = std::numeric_limits<double>::infinity();
    for (int step = 0; step < kCandidates; ++step) {
      const float clip = 1 - kStep * static_cast<float>(step);
      Matrix error(inputs[i].view());
      simulate(precision.activations.with(clip, layer.activation_bits[i]), precision.kept,
               layer.orders[i], error);
      for (int64_t r = 0; r < error.rows(); ++r) subtract(inputs[i].row(r), error.row(r));
      matmul_transposed(error, outputs, change);
      if (const double found = squared_norm(change); found < least) {
        least = found;
        clips[i] = clip;
      }
    }
  }
  return clips;
}

}  // namespace quarot
