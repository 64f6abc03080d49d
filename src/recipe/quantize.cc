#include "recipe/quantize.h"

#include <cmath>

#include "base/error.h"
#include "recipe/gptq_pipeline.h"

namespace quarot {

namespace {

// Σ over the rows of all readers of W_ij².
std::vector<double> column_energy(std::initializer_list<const Matrix*> readers) {
  std::vector<double> energy;
  for (const Matrix* weight : readers) {
    energy.resize(static_cast<size_t>(weight->cols()), 0.0);
    for (int64_t r = 0; r < weight->rows(); ++r) {
      const std::span<const float> row = weight->row(r);
      for (size_t c = 0; c < row.size(); ++c) energy[c] += double{row[c]} * row[c];
    }
  }
  return energy;
}

// (energy / power)^(α/2); channels that carry nothing, or are read by nothing, keep scale 1.
std::vector<double> balance(const std::vector<double>& energy, const std::vector<double>& power,
                            double alpha) {
  std::vector<double> scale(energy.size(), 1.0);
  for (size_t i = 0; i < energy.size(); ++i) {
    const double ratio = energy[i] / power[i];
    if (ratio > 0 && std::isfinite(ratio)) scale[i] = std::pow(ratio, alpha / 2);
  }
  return scale;
}

// Sums over the query heads that share a KV head.
std::vector<double> sum_groups(const ModelConfig& config, const std::vector<double>& per_head) {
  std::vector<double> sums(static_cast<size_t>(config.width(Space::kValue)), 0.0);
  for (int64_t head = 0; head < config.heads; ++head) {
    for (int64_t i = 0; i < config.head_dim; ++i) {
      sums[static_cast<size_t>(head / config.group() * config.head_dim + i)] +=
          per_head[static_cast<size_t>(head * config.head_dim + i)];
    }
  }
  return sums;
}

std::vector<float> to_float(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

LayerScales balance_scales(const Recipe& recipe, const ModelConfig& config, const Layer& layer,
                           const LayerStatistics& statistics) {
  LayerScales scales;
  if (recipe.balance == 0) return scales;
  if (!recipe.transforms.residual) {
    scales.attention_input =
        balance(column_energy({&layer[Role::kQuery].weight, &layer[Role::kKey].weight,
                               &layer[Role::kValue].weight}),
                statistics.attention_input, recipe.balance);
    scales.ffn_input =
        balance(column_energy({&layer[Role::kGate].weight, &layer[Role::kUp].weight}),
                statistics.ffn_input, recipe.balance);
  }
  scales.value = balance(sum_groups(config, column_energy({&layer[Role::kOutput].weight})),
                         sum_groups(config, statistics.attention_output), recipe.balance);
  scales.ffn_hidden =
      balance(column_energy({&layer[Role::kDown].weight}), statistics.ffn_hidden, recipe.balance);
  return scales;
}

LayerCenters cache_centers(const Recipe& recipe, const LayerStatistics& statistics) {
  LayerCenters centers;
  if (recipe.center != Centering::kNone) centers.key = to_float(statistics.key_mean);
  if (recipe.center == Centering::kKeysAndValues) centers.value = to_float(statistics.value_mean);
  return centers;
}

Status transform_model(const Recipe& recipe, const std::vector<LayerStatistics>& statistics,
                       Model& model, Progress& progress) {
  QUAROT_RETURN_IF_ERROR(check(recipe, model.config));
  const Transformer transformer(model.config, recipe.transforms);
  progress.stage("rotating", model.config.layers + 1);
  transformer.transform_outer(model);
  progress.advance(1);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    LayerScales scales;
    LayerCenters centers;
    if (!statistics.empty()) {
      scales = balance_scales(recipe, model.config, model.layers[i], statistics[i]);
      centers = cache_centers(recipe, statistics[i]);
    }
    transformer.transform_layer(model.layers[i], static_cast<int64_t>(i), scales, centers);
    progress.advance(1);
  }
  return {};
}

Status quantize_weights(const Recipe& recipe, const std::vector<std::vector<Token>>& windows,
                        Model& model, Progress& progress) {
  if (!recipe.weights.enabled()) return {};
  if (recipe.uses_gptq()) return quantize_by_gptq(recipe, windows, model, progress);
  progress.stage("quantising weights", model.config.layers);
  for (Layer& layer : model.layers) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    for (Linear& linear : layer.linears) {
      linear.quantized = round_to_nearest(recipe.weights, linear.weight);
      linear.weight = Matrix();
    }
    progress.advance(1);
  }
  return {};
}

}  // namespace quarot
