#include "recipe/storage_cost.h"

namespace quarot {

namespace {

constexpr double kScaleBits = 32;
constexpr double kZeroBits = 8;

double element_bits(int bits, bool symmetric, int64_t group) {
  if (bits >= kFloatBits) return kFloatBits;
  return bits + (kScaleBits + (symmetric ? 0 : kZeroBits)) / static_cast<double>(group);
}

double cache_element_bits(const CacheQuant& q, int64_t head_dim) {
  return element_bits(q.bits, false, group_size(q, head_dim));
}

}  // namespace

StorageCost storage_cost(const Recipe& recipe, const ModelConfig& config) {
  const WeightQuant& w = recipe.weights;
  const ActivationQuant& a = recipe.precision.activations;
  double weights = 0;
  double weight_bits = 0;
  for (const Role role : kRoles) {
    const RoleSpaces spaces = spaces_of(role);
    const int64_t inputs = config.width(spaces.input);
    const auto elements = static_cast<double>(inputs * config.width(spaces.output));
    weights += elements;
    weight_bits += elements * element_bits(w.bits, w.symmetric, group_size(w, inputs));
  }
  double channels = 0;
  double activation_bits = 0;
  for (const Space site : kSites) {
    const int64_t width = config.width(site);
    channels += static_cast<double>(width);
    activation_bits +=
        static_cast<double>(width) * element_bits(a.bits, a.symmetric, group_size(a, width));
  }
  StorageCost cost;
  cost.weight_bits = weight_bits / weights;
  cost.activation_bits = activation_bits / channels;
  cost.cache_bits = (cache_element_bits(recipe.precision.keys, config.head_dim) +
                     cache_element_bits(recipe.precision.values, config.head_dim)) /
                    2;
  return cost;
}

}  // namespace quarot
