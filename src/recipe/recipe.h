// A recipe: every choice that makes a quantised model from a float one, along independent axes. No
// method has a code path of its own through the model. DESIGN.md, sections 2 and 10.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/transform.h"
#include "quant/gptq.h"
#include "quant/quantizer.h"
#include "recipe/bits_rule.h"
#include "runtime/precision.h"

namespace quarot {

// s, by which each channel of a site is multiplied before it is rotated; its readers' columns are
// divided by it.
enum class Scaling {
  kNone,
  kBalance,      // s = (Σ W²/E x²)^(α/2), DESIGN.md section 3
  kSmoothQuant,  // s = max|W|^(1−α) / max|x|^α, one over SmoothQuant's (Xiao et al. 2023, eq. 4)
  kAwq,          // s = (E |x|)^−α, one over AWQ's (Lin et al. 2024, eq. 5)
};

struct ScalingSpec {
  Scaling method = Scaling::kNone;
  double alpha = 0.5;
  bool search = false;      // α for each site by the outputs' error
  bool norms_only = false;  // only what q, k, v, gate and up read

  bool enabled() const { return method != Scaling::kNone; }
  bool operator==(const ScalingSpec&) const = default;
};

enum class Centering { kNone, kKeys, kKeysAndValues };

// The basis in which each weight is rounded, on top of its spaces' own: U·W·Vᵀ with random U and V
// (two-sided incoherence: QuIP, Chee et al. 2023, section 4), which float activations pass through
// before and after the product. Simulated by turning the rounded weight back.
enum class Incoherence { kNone, kRandom, kHadamard };

enum class WeightGrid {
  kInteger,
  kE8,  // 2 bits as points of a lattice, quant/e8_lattice.h
};

enum class WeightMethod { kRoundToNearest, kGptq };

struct Recipe {
  std::string name = "float";
  TransformSpec transforms;
  ScalingSpec scaling;
  Centering center = Centering::kNone;
  WeightQuant weights;
  WeightMethod weight_method = WeightMethod::kRoundToNearest;
  WeightGrid grid = WeightGrid::kInteger;
  Incoherence incoherence = Incoherence::kNone;
  bool clip_by_outputs = false;  // rounding to the nearest: the clip ratio of each row by search
                                 // for the least output error
  GptqOptions gptq;
  bool gptq_quantized_inputs = false;  // let GPTQ, or the search for clip ratios by outputs, see
                                       // quantised activations and cache
  double gptq_residual = 0;  // how far o_proj and down_proj move to bring the residual stream back
                             // to the float model's: 0 not at all, 1 as least squares says
  int64_t gptq_tokens = 128 * 2048;  // of calibration text, where one is given
  Precision precision;
  std::vector<BitsRule> site_bits;  // in place of the weights' and the activations', where they say
  // Bits on average, over all multiply-adds, of the activations and of the weights that they read,
  // for choose_bits() to give some sites 8; 0: no.
  double a_budget = 0;
  double w_budget = 0;
  bool fit_groups = false;          // halve groups until they divide every width, see fitted()
  int embedding_bits = kFloatBits;  // 4 or 8: integers with a scale a row; else as stored
  int head_bits = kFloatBits;       // of lm_head
  int64_t calibration_tokens = 8192;
  uint64_t seed = 0;

  bool uses_gptq() const { return weights.enabled() && weight_method == WeightMethod::kGptq; }
  // Whether weights are rounded under the Hessians of their inputs.
  bool uses_hessians() const { return uses_gptq() || (weights.enabled() && clip_by_outputs); }
  // Whether rounded weights are more than integers and scales.
  bool leaves_floats() const {
    return incoherence != Incoherence::kNone || grid != WeightGrid::kInteger;
  }
  // Whether the float model's activations must be measured first.
  bool uses_statistics() const {
    return scaling.enabled() || center != Centering::kNone || precision.kept.count > 0 ||
           searches_clips();
  }
  // Whether these are needed row by row.
  bool uses_sample() const {
    return (scaling.enabled() && scaling.search) || precision.kept.count > 0 || searches_clips();
  }
  // Whether each site of each layer gets a clip ratio of its own.
  bool searches_clips() const {
    return precision.activations.enabled() && precision.activations.search_clip;
  }
  bool has_budget() const { return a_budget > 0 || w_budget > 0; }
  // Whether it needs calibration tokens at all.
  bool calibrates() const {
    return has_budget() || uses_statistics() || uses_hessians() ||
           transforms.finds_residual_basis();
  }
  // Whether the seed changes anything.
  bool is_random() const {
    return transforms.is_random() || incoherence != Incoherence::kNone || calibrates();
  }
  bool is_float() const {
    return !weights.enabled() && !precision.activations.enabled() && !precision.keys.enabled() &&
           !precision.values.enabled() && embedding_bits == kFloatBits && head_bits == kFloatBits;
  }
};

// The named recipes, with one line of explanation each, in the order people should read them.
struct NamedRecipe {
  std::string_view name;
  std::string_view summary;
};
std::vector<NamedRecipe> named_recipes();

// kNotFound with the list of names for an unknown one.
Result<Recipe> recipe_by_name(std::string_view name);

// The JSON form: every field optional, over the recipe that "name" (or "base") names.
void to_json(nlohmann::json& json, const Recipe& recipe);
Result<Recipe> parse_recipe(const nlohmann::json& json, const std::string& where);

// "all", "none", or names from R1, R2, R3, R4 (also: norm, heads), separated by commas; "-name"
// takes one back: "all,-heads". R2 brings the mixing across heads with it. For a recipe that
// rotates the norms' outputs R1 means these.
Status set_rotations(std::string_view list, TransformSpec& spec);

// W4A4KV4, W4A8K4V3, W16A16KV16: what the field calls it; then E8 and H4 where the embedding and
// lm_head are quantised. W4A4/8KV4 where some sites have 8 bits of their own.
std::string bits_label(const Recipe& recipe);

// The other way round; K and V that are not named stay float, tables that are not named as they
// are. kInvalidArgument for what is no such label.
Status set_bits(const std::string& label, Recipe& recipe);

// The recipe on this model: where it says so, with groups that fit.
Recipe fitted(Recipe recipe, const ModelConfig& config);

// How a linear's weights are rounded.
WeightQuant weights_of(const Recipe& recipe, int64_t layer, Role role);

// What must divide the number of a site's channels that are not kept: every group does then.
int64_t group_unit(const Recipe& recipe);

// kInvalidArgument where the recipe does not fit the model: widths that groups do not divide, ….
Status check(const Recipe& recipe, const ModelConfig& config);

}  // namespace quarot
