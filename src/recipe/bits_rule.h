// Bits that some sites and linears have of their own, in a recipe whose other ones have its w_bits
// and a_bits.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"
#include "model/model.h"
#include "model/space.h"

namespace quarot {

// PLACE[@LAYERS]=BITS: "o_proj=A8", "down_proj@0-3,29=W8A8". A place is a site, by what reads it:
// qkv_proj, o_proj, gate_up_proj, down_proj, or all of them; A its activations, W the weights
// there. Or one linear of a site that several read, which has W alone.
struct BitsRule {
  std::string place;
  std::vector<std::pair<int64_t, int64_t>> layers;  // from … to …; empty: all
  int weights = 0;                                  // 2…8; 0: does not say
  int activations = 0;

  bool operator==(const BitsRule&) const = default;
};

// kInvalidArgument with the grammar for what does not follow it.
Result<BitsRule> parse_bits_rule(const std::string& text);
std::string to_text(const BitsRule& rule);

// What the rules make of a layer, each over those before it; 0: none of them says.
struct LayerBits {
  std::array<int, kRoles.size()> weights{};  // by role
  SiteBits activations{};
};
LayerBits bits_of(const std::vector<BitsRule>& rules, int64_t layer);

// The rule for a site as a whole, of those layers that are true in the list of all.
BitsRule rule_for(Space site, const std::vector<bool>& layers, int weights, int activations);

// kInvalidArgument for layers that the model does not have.
Status check(const std::vector<BitsRule>& rules, const ModelConfig& config);

}  // namespace quarot
