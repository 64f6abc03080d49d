#include "recipe/rivals.h"

namespace quarot {

namespace {

void round_weights(Recipe& recipe, int bits) {
  recipe.weights.bits = bits;
  recipe.weights.search_clip = false;
}

void round_activations(Recipe& recipe, int bits) {
  recipe.precision.activations.bits = bits;
  recipe.precision.activations.clip = 1;
}

void smoothquant(Recipe& recipe) {
  round_weights(recipe, 8);
  round_activations(recipe, 8);
  recipe.scaling = {.method = Scaling::kSmoothQuant, .norms_only = true};
}

void smoothquant_searched(Recipe& recipe) {
  smoothquant(recipe);
  recipe.scaling.search = true;
}

void awq(Recipe& recipe) {
  round_weights(recipe, 4);
  recipe.weights.symmetric = false;
  recipe.weights.group = 128;
  recipe.fit_groups = true;
  recipe.clip_by_outputs = true;
  recipe.scaling = {.method = Scaling::kAwq, .search = true};
}

void llm_int8(Recipe& recipe) {
  round_weights(recipe, 8);
  round_activations(recipe, 8);
  recipe.precision.kept.threshold = 6;
}

void quik(Recipe& recipe) {
  round_weights(recipe, 4);
  recipe.weights.search_clip = true;
  recipe.weight_method = WeightMethod::kGptq;
  round_activations(recipe, 4);
  recipe.precision.kept.count = 256;
}

void atom(Recipe& recipe) {
  quik(recipe);
  recipe.weights.group = recipe.precision.activations.group = 128;
  recipe.fit_groups = true;
  recipe.precision.activations.clip = 0.9F;
  recipe.precision.keys.bits = recipe.precision.values.bits = 4;
  recipe.precision.kept = {.count = 128, .bits = 8, .sorted = true};
}

void kivi(Recipe& recipe) {
  Precision& p = recipe.precision;
  p.keys = p.values = {.bits = 2, .clip = 1, .group = 32};
  p.pages = {.keys_by_channel = true, .recent = 128};
  recipe.fit_groups = true;
}

void kvquant(Recipe& recipe) {
  Precision& p = recipe.precision;
  p.keys = p.values = {.bits = 3, .clip = 1};
  p.pages = {.keys_by_channel = true, .keys_before_rope = true, .outliers = 0.01};
}

void omniquant(Recipe& recipe) {
  round_weights(recipe, 4);
  recipe.clip_by_outputs = true;
  round_activations(recipe, 4);
  recipe.scaling = {.method = Scaling::kSmoothQuant, .search = true};
  recipe.gptq_quantized_inputs = true;
}

void quip(Recipe& recipe) {
  recipe.weights = {.bits = 2, .symmetric = false};
  recipe.weight_method = WeightMethod::kGptq;
  recipe.incoherence = Incoherence::kHadamard;
  recipe.scaling.method = Scaling::kBalance;
}

void quip_sharp(Recipe& recipe) {
  quip(recipe);
  recipe.weights.symmetric = true;
  recipe.grid = WeightGrid::kE8;
}

void slicegpt_basis(Recipe& recipe) {
  recipe.weights.bits = recipe.precision.activations.bits = 4;
  recipe.precision.keys.bits = recipe.precision.values.bits = 4;
  TransformSpec& t = recipe.transforms;
  t.residual = t.value = t.heads = t.query_key = t.ffn = true;
  t.kind = BasisKind::kPrincipal;
}

constexpr Rival kRivals[] = {
    {{"smoothquant", "W8A8, what the norms feed scaled by max|x|^0.5 / max|W|^0.5 (SmoothQuant)"},
     smoothquant},
    {{"smoothquant-searched", "the same, the exponent found for each site on the output error"},
     smoothquant_searched},
    {{"awq", "W4 in groups of 128, asymmetric; sites scaled by E|x|^α, α by output error (AWQ)"},
     awq},
    {{"llm-int8", "W8A8; channels where a token of the batch exceeds 6 stay float (LLM.int8())"},
     llm_int8},
    {{"quik", "W4A4 by GPTQ, but 256 channels a site, at most an eighth, in 16 bits (QUIK)"}, quik},
    {{"atom",
      "W4A4KV4 by GPTQ in groups of 128, sorted; 128 channels a site, at most an eighth, in "
      "8 bits (Atom)"},
     atom},
    {{"omniquant",
      "W4A4; scales and clip ratios searched on the output error, layer by layer, where "
      "OmniQuant descends gradients"},
     omniquant},
    {{"quip", "W2; each weight in Hadamard bases of both sides, by LDLQ, which is GPTQ (QuIP)"},
     quip},
    {{"quip-sharp",
      "W2; Hadamard bases of both sides, E8 lattice points by block LDLQ, not fine-tuned "
      "(QuIP#)"},
     quip_sharp},
    {{"principal",
      "W4A4KV4 as quarot, but R1 the residual stream's principal components (SliceGPT's "
      "rotation)"},
     slicegpt_basis},
    {{"kivi", "KV2: keys by channel over 32 tokens, values by token, the last 128 float (KIVI)"},
     kivi},
    {{"kvquant",
      "KV3: keys by channel before RoPE, 1 % outliers float; uniform levels, not the "
      "paper's learned ones (KVQuant)"},
     kvquant},
};

}  // namespace

std::span<const Rival> rivals() { return kRivals; }

}  // namespace quarot
