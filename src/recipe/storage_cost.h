// What a recipe's numbers cost: bits an element, scales and zero points included.
#pragma once

#include "model/config.h"
#include "recipe/recipe.h"

namespace quarot {

// Averages over the elements of all layers. Floats count 16 bits; each group of b-bit integers has
// a scale of 32 bits and, where it is asymmetric, a zero point of 8, as the artifact and the cache
// store them. A cache quantised by pages has a scale and an offset of 32 bits each, an outlier of
// it 16 and as many for its place; what is recent and float yet is not counted.
// A budget counts as if it were of all elements, and spent.
struct StorageCost {
  double weight_bits = kFloatBits;      // of the layers' linears
  double activation_bits = kFloatBits;  // of what these read, a token
  double cache_bits = kFloatBits;       // of a key or a value
  int64_t kept_channels = 0;  // of a layer's four sites, in higher precision; where a threshold
                              // decides while running, neither here nor in the bits
};

StorageCost storage_cost(const Recipe& recipe, const ModelConfig& config);

// Bytes of the tensors that a model takes on disk once it is written so: the layers' linears, and
// the embedding and lm_head with 16 bits where the recipe leaves them float. Norms and biases, a
// few thousandths, do not count.
double written_bytes(const Recipe& recipe, const ModelConfig& config);

}  // namespace quarot
