// From a float model and a recipe to the model the recipe describes, layer by layer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/progress.h"
#include "quarot/execution.h"
#include "recipe/activation_clips.h"
#include "recipe/calibration.h"
#include "recipe/recipe.h"
#include "recipe/round_layer.h"
#include "recipe/scaling.h"

namespace quarot {

struct LayerSeconds {
  double measuring = 0;  // the float model's activations, and the searches for scales and clips
  double passing = 0;    // the tokens through the layer as its weights become rounded
  double rounding = 0;
};

// What was found out on the way.
struct LayerReport {
  LayerErrors errors{};
  SiteAlphas alphas{};  // of the scaling before rotating; searched or not
  SiteClips clips{};    // of the activations, where searched
  LayerSeconds seconds;
};

LayerCenters cache_centers(const Recipe& recipe, const LayerStatistics& statistics);

// The way of every layer, one after another, from float to what the recipe makes of it: measured,
// moved into its bases, rounded. It holds no layer; of the calibration tokens it holds residual
// streams, of the float model and of the rounded one, on the device that runs them through the
// layers, and drops them after the last one.
class LayerPipeline {
 public:
  using Embed = FunctionRef<Result<Matrix>(std::span<const Token>)>;

  // kInvalidArgument where the recipe does not fit the model. `found`: see Transformer.
  static Result<std::unique_ptr<LayerPipeline>> create(
      const Recipe& recipe, const ModelConfig& config, Progress& progress,
      Device device = Device::kCpu, const std::optional<Orthogonal>& found = std::nullopt);

  // Before the first layer, where the recipe calibrates: the tokens, and `embed` for their rows of
  // the embedding in the model's own basis.
  Status begin(std::span<const std::vector<Token>> windows, Embed embed);

  // From the float layer to the finished one, whose weights are integers where the recipe rounds.
  Result<LayerReport> finish(int64_t index, Layer& layer);

  // Instead, where the layer was finished in an earlier run: as it was and as it became.
  Status skip(int64_t index, const Layer& original, Layer finished);

  const Transformer& transformer() const { return transformer_; }

 private:
  LayerPipeline(const Recipe& recipe, const ModelConfig& config, Progress& progress, Device device,
                const std::optional<Orthogonal>& found);
  Result<std::unique_ptr<LayerStream>> open_stream(std::span<const std::vector<Token>> windows,
                                                   Embed embed, bool transformed) const;
  // What the float model's activations say of a layer.
  struct Measured {
    LayerScales scales;
    LayerCenters centers;
    SiteSamples inputs;  // of the finished layer's linears, where clip ratios are searched
  };
  Result<Measured> measure(int64_t index, Layer& layer, LayerReport& report);
  void drop_streams();
  void order_channels(int64_t index, const LayerScales& scales, const LayerStatistics& statistics,
                      Layer& layer) const;

  Recipe recipe_;
  ModelConfig config_;
  Transformer transformer_;
  Progress& progress_;
  Device device_;
  std::unique_ptr<LayerStream> original_;  // for statistics
  std::unique_ptr<LayerStream> target_;    // the same float model, for what GPTQ aims at
  std::unique_ptr<LayerStream> rounded_;   // for GPTQ
  int64_t sample_every_ = 0;
};

// Rounds the embedding and lm_head, a scale a row. Tied tables of the same bits stay one.
void quantize_tables(const Recipe& recipe, Model& model);

// The layers of a model as they are asked for, and what was found out about those given so far.
struct FinishedLayers {
  NextLayer next;
  std::shared_ptr<const std::vector<LayerReport>> reports;
};

// Finishes a model that has everything but its layers, tables rounded, and gives these, finished,
// as they are asked for: one float layer is in memory at a time. `floats` gives them in the model's
// own basis. What is given refers to `progress`. `found`: see Transformer.
Result<FinishedLayers> quantize_model(const Recipe& recipe,
                                      std::span<const std::vector<Token>> windows, NextLayer floats,
                                      Model& model, Progress& progress,
                                      Device device = Device::kCpu,
                                      const std::optional<Orthogonal>& found = std::nullopt);

}  // namespace quarot
