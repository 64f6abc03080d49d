#include "recipe/quantize.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/stopwatch.h"
#include "quant/pack.h"
#include "runtime/make_backend.h"

namespace quarot {

namespace {

constexpr int64_t kSampleRows = 512;  // of each site, for searches

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

LayerCenters cache_centers(const Recipe& recipe, const LayerStatistics& statistics) {
  LayerCenters centers;
  if (recipe.center != Centering::kNone) centers.key = to_float(statistics[Space::kKey].mean);
  if (recipe.center == Centering::kKeysAndValues)
    centers.value = to_float(statistics[Space::kValue].mean);
  return centers;
}

LayerPipeline::LayerPipeline(const Recipe& recipe, const ModelConfig& config, Progress& progress,
                             Device device, const std::optional<Orthogonal>& found)
    : recipe_(recipe),
      config_(config),
      transformer_(config, recipe.transforms, found),
      progress_(progress),
      device_(device) {}

Result<std::unique_ptr<LayerPipeline>> LayerPipeline::create(
    const Recipe& recipe, const ModelConfig& config, Progress& progress, Device device,
    const std::optional<Orthogonal>& found) {
  QUAROT_RETURN_IF_ERROR(check(recipe, config));
  return std::unique_ptr<LayerPipeline>(new LayerPipeline(recipe, config, progress, device, found));
}

Status LayerPipeline::begin(std::span<const std::vector<Token>> windows, Embed embed) {
  if (recipe_.uses_statistics()) {
    const auto measured = first_windows(windows, recipe_.calibration_tokens);
    QUAROT_ASSIGN_OR_RETURN(original_, open_stream(measured, embed, false));
    if (recipe_.uses_sample())
      sample_every_ = std::max<int64_t>(count_tokens(measured) / kSampleRows, 1);
  }
  if (!recipe_.uses_hessians()) return {};
  if (recipe_.gptq_residual > 0) {
    QUAROT_ASSIGN_OR_RETURN(target_, open_stream(windows, embed, false));
  }
  QUAROT_ASSIGN_OR_RETURN(rounded_, open_stream(windows, embed, true));
  return {};
}

// Of the float model as it is, or of what the recipe makes of it.
Result<std::unique_ptr<LayerStream>> LayerPipeline::open_stream(
    std::span<const std::vector<Token>> windows, Embed embed, bool transformed) const {
  const bool quantised = transformed && recipe_.gptq_quantized_inputs;
  QUAROT_ASSIGN_OR_RETURN(
      std::unique_ptr<LayerStream> stream,
      make_layer_stream(config_, transformed ? transformer_.online() : OnlineTransforms(),
                        quantised ? recipe_.precision : Precision(), device_, progress_));
  QUAROT_RETURN_IF_ERROR(stream->reserve(count_tokens(windows)));
  for (const std::vector<Token>& window : windows) {
    QUAROT_RETURN_IF_ERROR(check_batch({window, {{0, 0, std::ssize(window), 0}}}, config_));
    QUAROT_ASSIGN_OR_RETURN(Matrix rows, embed(window));
    if (transformed) transformer_.transform_embedding(rows);
    QUAROT_RETURN_IF_ERROR(stream->add_window(window, std::move(rows)));
  }
  return stream;
}

Result<LayerReport> LayerPipeline::finish(int64_t index, Layer& layer) {
  LayerReport report;
  Measured measured;
  if (original_) {
    QUAROT_ASSIGN_OR_RETURN(measured, measure(index, layer, report));
  }
  std::optional<ResidualTarget> target;
  if (target_) {
    target_->put_layer(index, layer);
    target = {target_.get(), transformer_.basis_of(Space::kResidual, {}, index)};
  }
  transformer_.transform_layer(layer, index, measured.scales, measured.centers);
  layer.activation_bits = bits_of(recipe_.site_bits, index).activations;
  if (recipe_.searches_clips()) {
    const Stopwatch searching;
    layer.clips = report.clips = search_clips(recipe_, index, layer, measured.inputs);
    report.seconds.measuring += searching.seconds();
  }
  const Stopwatch watch;
  if (rounded_) {
    QUAROT_ASSIGN_OR_RETURN(
        const RoundedLayer rounded,
        round_under_hessians(recipe_, index, *rounded_, target ? &*target : nullptr, layer));
    if (target_) target_->take_layer();
    report.errors = rounded.errors;
    report.seconds.passing = rounded.passing;
  } else if (recipe_.weights.enabled()) {
    QUAROT_ASSIGN_OR_RETURN(report.errors, round_to_nearest(recipe_, index, layer));
  }
  report.seconds.rounding = watch.seconds() - report.seconds.passing;
  if (index + 1 == config_.layers) drop_streams();
  return report;
}

Result<LayerPipeline::Measured> LayerPipeline::measure(int64_t index, Layer& layer,
                                                       LayerReport& report) {
  const Stopwatch watch;
  original_->put_layer(index, std::move(layer));
  const Result<LayerStatistics> statistics = collect_statistics(*original_, sample_every_);
  layer = original_->take_layer();
  if (!statistics.ok()) return statistics.error();
  ScaledSites scaled = scale_sites(recipe_, config_, transformer_, index, layer, *statistics);
  Measured measured{std::move(scaled.scales), cache_centers(recipe_, *statistics), {}};
  order_channels(index, measured.scales, *statistics, layer);
  for (const Space site : kSites) {
    if (!recipe_.searches_clips()) break;
    Matrix& rows = measured.inputs[site_index(site)];
    rows = Matrix((*statistics)[site].sample.view());
    transformer_.transform_inputs(rows, site, layer, index, measured.scales, measured.centers);
  }
  report.alphas = scaled.alphas;
  report.seconds.measuring = watch.seconds();
  return measured;
}

void LayerPipeline::drop_streams() {
  original_.reset();
  target_.reset();
  rounded_.reset();
}

// By what calibration saw, moved into the basis of each site.
void LayerPipeline::order_channels(int64_t index, const LayerScales& scales,
                                   const LayerStatistics& statistics, Layer& layer) const {
  const KeptChannels& kept = recipe_.precision.kept;
  if (kept.count == 0) return;
  for (const Space site : kSites) {
    std::vector<double> largest = statistics[site].largest;
    if (const Basis basis = transformer_.basis_of(site, scales, index); !basis.is_identity()) {
      Matrix rows(statistics[site].sample.view());
      change_basis(rows, basis);
      std::ranges::fill(largest, 0.0);
      for (int64_t r = 0; r < rows.rows(); ++r) {
        for (size_t c = 0; c < largest.size(); ++c)
          largest[c] = std::max(largest[c], std::abs(double{rows.row(r)[c]}));
      }
    }
    layer.orders[site_index(site)] = quarot::order_channels(kept, largest, group_unit(recipe_));
  }
}

Status LayerPipeline::skip(int64_t index, const Layer& original, Layer finished) {
  dequantize(finished);
  const auto run = [&](LayerStream* stream, const Layer& layer) -> Status {
    if (stream == nullptr) return {};
    stream->put_layer(index, layer);
    QUAROT_RETURN_IF_ERROR(stream->run_layer());
    stream->take_layer();
    return {};
  };
  QUAROT_RETURN_IF_ERROR(run(original_.get(), original));
  QUAROT_RETURN_IF_ERROR(run(target_.get(), original));
  QUAROT_RETURN_IF_ERROR(run(rounded_.get(), finished));
  if (index + 1 == config_.layers) drop_streams();
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

Result<FinishedLayers> quantize_model(const Recipe& recipe,
                                      std::span<const std::vector<Token>> windows, NextLayer floats,
                                      Model& model, Progress& progress, Device device,
                                      const std::optional<Orthogonal>& found) {
  QUAROT_ASSIGN_OR_RETURN(std::shared_ptr<LayerPipeline> pipeline,
                          LayerPipeline::create(recipe, model.config, progress, device, found));
  QUAROT_RETURN_IF_ERROR(pipeline->begin(windows, [&](std::span<const Token> tokens) {
    return Result<Matrix>(embedding_rows(model.embedding, tokens));
  }));
  pipeline->transformer().transform_outer(model);
  quantize_tables(recipe, model);
  progress.stage("quantising layers", model.config.layers);
  auto reports = std::make_shared<std::vector<LayerReport>>();
  NextLayer next = [pipeline, floats = std::move(floats), reports,
                    &progress]() mutable -> Result<Layer> {
    QUAROT_RETURN_IF_ERROR(progress.check());
    QUAROT_ASSIGN_OR_RETURN(Layer layer, floats());
    QUAROT_ASSIGN_OR_RETURN(const LayerReport report,
                            pipeline->finish(static_cast<int64_t>(reports->size()), layer));
    reports->push_back(report);
    progress.advance(1);
    return layer;
  };
  return FinishedLayers{std::move(next), std::move(reports)};
}

}  // namespace quarot
