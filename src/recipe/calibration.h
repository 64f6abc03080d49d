// What a recipe needs to know of the float model's activations: a pass over a few thousand tokens.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "base/progress.h"
#include "model/model.h"
#include "runtime/layer_stream.h"

namespace quarot {

// Of each channel of a space, over the calibration tokens.
struct ChannelStatistics {
  std::vector<double> mean, mean_magnitude, mean_square, largest;  // E x, E |x|, E x², max |x|
  Matrix sample;  // some of the rows, evenly spread; empty where none were asked for
};

// Statistics of one layer, in the model's own basis: of what the linears read, of K after RoPE and
// of V.
struct LayerStatistics {
  std::array<ChannelStatistics, kSpaces> spaces;

  ChannelStatistics& operator[](Space space) { return spaces[static_cast<size_t>(space)]; }
  const ChannelStatistics& operator[](Space space) const {
    return spaces[static_cast<size_t>(space)];
  }
};

// Cuts `tokens` tokens out of a text: windows of `window`, at places the seed chooses, none
// overlapping; all of the text where it is shorter. Every window begins with `bos` where given.
std::vector<std::vector<Token>> sample_windows(std::span<const Token> text, int64_t tokens,
                                               int64_t window, std::optional<Token> bos,
                                               uint64_t seed);

// The first ones, that hold so many tokens together, or all.
std::span<const std::vector<Token>> first_windows(std::span<const std::vector<Token>> windows,
                                                  int64_t tokens);
int64_t count_tokens(std::span<const std::vector<Token>> windows);

// Text the model itself makes up: for calibration where no text is given. Sampled at temperature 1,
// several sequences side by side.
Result<std::vector<std::vector<Token>>> self_generated_windows(const Model& model,
                                                               std::optional<Token> bos,
                                                               int64_t tokens, uint64_t seed,
                                                               Progress& progress);

// Runs the stream through the layer that stands in it, float and in the model's own basis. Of the
// sites' rows every `sample_every`-th becomes part of the sample; 0: none.
Result<LayerStatistics> collect_statistics(LayerStream& stream, int64_t sample_every = 0);

}  // namespace quarot
