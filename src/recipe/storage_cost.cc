#include "recipe/storage_cost.h"

#include "kernels/cache_task.h"

namespace quarot {

namespace {

constexpr double kScaleBits = 32;
constexpr double kZeroBits = 8;
constexpr double kOffsetBits = 32;
constexpr double kOutlierBits = 16 + 16;

double element_bits(int bits, double grid_bits, int64_t group) {
  return bits >= kFloatBits ? kFloatBits : bits + grid_bits / static_cast<double>(group);
}

double grid_bits(bool symmetric) { return kScaleBits + (symmetric ? 0 : kZeroBits); }

int64_t kept_of(const Recipe& recipe, int64_t width) {
  return kept_count(recipe.precision.kept, width, group_unit(recipe));
}

// Of a row as wide as a site, whose kept channels have bits and a scale of their own.
template <typename Quant>
double row_bits(const Recipe& recipe, const Quant& q, int64_t width) {
  if (!q.enabled()) return static_cast<double>(kFloatBits * width);
  const double grid = grid_bits(q.symmetric);
  const int64_t kept = kept_of(recipe, width);
  const int64_t rest = width - kept;
  double bits = static_cast<double>(rest) * element_bits(q.bits, grid, group_size(q, rest));
  if (kept > 0) {
    bits += static_cast<double>(kept) * element_bits(recipe.precision.kept.bits, grid, kept);
  }
  return bits;
}

double cache_bits(const Precision& p, const CacheQuant& q, bool by_channel, int64_t head_dim) {
  const int64_t group = by_channel ? kPageTokens : group_size(q, head_dim);
  if (!q.enabled()) return kFloatBits;
  if (!p.pages.enabled()) return element_bits(q.bits, grid_bits(false), group);
  return element_bits(q.bits, kScaleBits + kOffsetBits, group) + p.pages.outliers * kOutlierBits;
}

}  // namespace

StorageCost storage_cost(const Recipe& recipe, const ModelConfig& config) {
  const Precision& p = recipe.precision;
  double weights = 0;
  double channels = 0;
  StorageCost cost{0, 0, 0, 0};
  for (const Role role : kRoles) {
    const RoleSpaces spaces = spaces_of(role);
    const int64_t inputs = config.width(spaces.input);
    const auto rows = static_cast<double>(config.width(spaces.output));
    weights += rows * static_cast<double>(inputs);
    for (int64_t layer = 0; layer < config.layers; ++layer)
      cost.weight_bits += rows * row_bits(recipe, weights_of(recipe, layer, role), inputs);
  }
  for (const Space site : kSites) {
    const int64_t width = config.width(site);
    channels += static_cast<double>(width);
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      const int own = bits_of(recipe.site_bits, layer).activations[site_index(site)];
      cost.activation_bits += row_bits(recipe, p.activations.with(0, own), width);
    }
    cost.kept_channels += kept_of(recipe, width);
  }
  // Up to the budget, before it is known where.
  if (recipe.w_budget > 0) {
    cost.weight_bits +=
        (recipe.w_budget - recipe.weights.bits) * weights * static_cast<double>(config.layers);
  }
  if (recipe.a_budget > 0) {
    cost.activation_bits +=
        (recipe.a_budget - p.activations.bits) * channels * static_cast<double>(config.layers);
  }
  cost.weight_bits /= weights * static_cast<double>(config.layers);
  cost.activation_bits /= channels * static_cast<double>(config.layers);
  cost.cache_bits = (cache_bits(p, p.keys, p.pages.keys_by_channel, config.head_dim) +
                     cache_bits(p, p.values, false, config.head_dim)) /
                    2;
  return cost;
}

double written_bytes(const Recipe& recipe, const ModelConfig& config) {
  double weights = 0;
  for (const Role role : kRoles) {
    const RoleSpaces spaces = spaces_of(role);
    weights += static_cast<double>(config.width(spaces.output) * config.width(spaces.input));
  }
  const auto table = [&](int bits) {
    return static_cast<double>(config.vocab * config.hidden) *
           element_bits(bits, kScaleBits, config.hidden);
  };
  double bits =
      static_cast<double>(config.layers) * weights * storage_cost(recipe, config).weight_bits;
  bits += table(recipe.embedding_bits);
  const bool tied = config.tied_embeddings && !recipe.transforms.residual &&
                    recipe.head_bits == recipe.embedding_bits;
  if (!tied) bits += table(recipe.head_bits);
  return bits / 8;
}

}  // namespace quarot
