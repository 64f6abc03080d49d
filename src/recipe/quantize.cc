#include "recipe/quantize.h"

#include <cmath>

#include "base/error.h"
#include "quant/pack.h"

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

// In pieces: a table as float32 may be much larger than as it is stored.
void round_table(int bits, RowTable& table) {
  if (bits == kFloatBits) return;
  constexpr int64_t kPiece = 1024;
  RowTable result(table.rows(), table.cols(), bits == 4 ? Storage::kInt4 : Storage::kInt8);
  for (int64_t first = 0; first < table.rows(); first += kPiece) {
    Matrix piece(std::min(kPiece, table.rows() - first), table.cols());
    for (int64_t r = 0; r < piece.rows(); ++r) table.read_row(first + r, piece.row(r));
    const QuantizedWeight weight = round_to_nearest({.bits = bits}, piece);
    result.set_rows(first, pack_int32(weight.values.view(), bits).view(), weight.scales);
  }
  table = std::move(result);
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

LayerPipeline::LayerPipeline(const Recipe& recipe, const ModelConfig& config, Progress& progress)
    : recipe_(recipe),
      config_(config),
      transformer_(config, recipe.transforms),
      original_(config, {}, {}, progress),
      rounded_(config, transformer_.online(),
               recipe.gptq_quantized_inputs ? recipe.precision : Precision(), progress) {}

Result<std::unique_ptr<LayerPipeline>> LayerPipeline::create(const Recipe& recipe,
                                                             const ModelConfig& config,
                                                             Progress& progress) {
  QUAROT_RETURN_IF_ERROR(check(recipe, config));
  return std::unique_ptr<LayerPipeline>(new LayerPipeline(recipe, config, progress));
}

Status LayerPipeline::begin(std::span<const std::vector<Token>> windows, Embed embed) {
  int64_t measured = 0;
  for (const std::vector<Token>& window : windows) {
    const auto count = static_cast<int64_t>(window.size());
    QUAROT_RETURN_IF_ERROR(check_batch({window, {{0, 0, count, 0}}}, config_));
    QUAROT_ASSIGN_OR_RETURN(Matrix rows, embed(window));
    if (recipe_.uses_statistics() && measured < recipe_.calibration_tokens) {
      original_.add_window(window, rows);
      measured += count;
    }
    if (!recipe_.uses_gptq()) continue;
    transformer_.transform_embedding(rows);
    rounded_.add_window(window, std::move(rows));
  }
  return {};
}

Result<LayerErrors> LayerPipeline::finish(int64_t index, Layer& layer) {
  LayerScales scales;
  LayerCenters centers;
  if (original_.windows() > 0) {
    original_.put_layer(index, std::move(layer));
    const Result<LayerStatistics> statistics = collect_statistics(original_);
    layer = original_.take_layer();
    if (!statistics.ok()) return statistics.error();
    scales = balance_scales(recipe_, config_, layer, *statistics);
    centers = cache_centers(recipe_, *statistics);
  }
  transformer_.transform_layer(layer, index, scales, centers);
  if (!recipe_.weights.enabled()) return LayerErrors();
  if (recipe_.uses_gptq()) return round_by_gptq(recipe_, index, rounded_, layer);
  return round_to_nearest(recipe_.weights, layer);
}

Status LayerPipeline::skip(int64_t index, Layer original, Layer finished) {
  dequantize(finished);
  original_.put_layer(index, std::move(original));
  rounded_.put_layer(index, std::move(finished));
  for (LayerStream* stream : {&original_, &rounded_}) {
    QUAROT_RETURN_IF_ERROR(stream->run_layer());
    stream->take_layer();
  }
  return {};
}

void quantize_tables(const Recipe& recipe, Model& model) {
  if (model.lm_head.empty() && recipe.head_bits != recipe.embedding_bits) {
    model.lm_head = model.embedding;
    model.config.tied_embeddings = false;
  }
  round_table(recipe.embedding_bits, model.embedding);
  if (!model.lm_head.empty()) round_table(recipe.head_bits, model.lm_head);
}

Status quantize_model(const Recipe& recipe, std::span<const std::vector<Token>> windows,
                      FunctionRef<Result<Layer>(int64_t)> load, Model& model, Progress& progress) {
  QUAROT_ASSIGN_OR_RETURN(const auto pipeline,
                          LayerPipeline::create(recipe, model.config, progress));
  QUAROT_RETURN_IF_ERROR(pipeline->begin(windows, [&](std::span<const Token> tokens) {
    Matrix rows(static_cast<int64_t>(tokens.size()), model.config.hidden);
    for (int64_t r = 0; r < rows.rows(); ++r)
      model.embedding.read_row(tokens[static_cast<size_t>(r)], rows.row(r));
    return Result<Matrix>(std::move(rows));
  }));
  progress.stage("quantising layers", model.config.layers);
  for (int64_t i = 0; i < model.config.layers; ++i) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    QUAROT_ASSIGN_OR_RETURN(Layer layer, load(i));
    const Result<LayerErrors> finished = pipeline->finish(i, layer);
    if (!finished.ok()) return finished.error();
    model.layers.push_back(std::move(layer));
    progress.advance(1);
  }
  pipeline->transformer().transform_outer(model);
  quantize_tables(recipe, model);
  return {};
}

}  // namespace quarot
