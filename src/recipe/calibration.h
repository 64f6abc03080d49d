// What a recipe needs to know of the float model's activations: a pass over a few thousand tokens.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/progress.h"
#include "model/model.h"
#include "recipe/layer_stream.h"

namespace quarot {

// Statistics of one layer over the calibration tokens, in the model's own basis.
struct LayerStatistics {
  // E[x²] a channel, of what the linears read.
  std::vector<double> attention_input, attention_output, ffn_input, ffn_hidden;
  // Means of K after RoPE and of V, [kv_heads · head_dim].
  std::vector<double> key_mean, value_mean;
};

// Cuts `tokens` tokens out of a text: windows of `window`, at places the seed chooses, none
// overlapping; all of the text where it is shorter. Every window begins with `bos` where given.
std::vector<std::vector<Token>> sample_windows(std::span<const Token> text, int64_t tokens,
                                               int64_t window, std::optional<Token> bos,
                                               uint64_t seed);

// Text the model itself makes up: for calibration where no text is given. Sampled at temperature 1,
// several sequences side by side.
Result<std::vector<std::vector<Token>>> self_generated_windows(const Model& model,
                                                               std::optional<Token> bos,
                                                               int64_t tokens, uint64_t seed,
                                                               Progress& progress);

// Runs the stream through the layer that stands in it, float and in the model's own basis.
Result<LayerStatistics> collect_statistics(LayerStream& stream);

}  // namespace quarot
