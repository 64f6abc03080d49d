#include "recipe/choose_bits.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/cpu_layer_stream.h"

namespace quarot {

namespace {

constexpr int kMoreBits = 8;
constexpr size_t kWindows = 2;
constexpr int64_t kTokens = 128;  // of each

double multiply_adds(Space site, const ModelConfig& config) {
  int64_t sum = 0;
  for (const Role role : kRoles) {
    const RoleSpaces spaces = spaces_of(role);
    if (spaces.input == site) sum += config.width(spaces.input) * config.width(spaces.output);
  }
  return static_cast<double>(sum);
}

// A token's mean of the relative squared error.
double relative_error(ConstMatrixRef rows, ConstMatrixRef exact) {
  double sum = 0;
  for (int64_t r = 0; r < rows.rows(); ++r) {
    double difference = 0;
    double norm = 0;
    for (int64_t c = 0; c < rows.cols(); ++c) {
      const double d = double{rows(r, c)} - exact(r, c);
      difference += d * d;
      norm += double{exact(r, c)} * exact(r, c);
    }
    sum += norm > 0 ? difference / norm : 0;
  }
  return sum / static_cast<double>(rows.rows());
}

// Only what the layers' activations are rounded by.
Precision of_activations(const Recipe& recipe) {
  Precision precision = recipe.precision;
  precision.keys = precision.values = {};
  precision.pages = {};
  return precision;
}

Recipe with_float_weights(Recipe recipe) {
  recipe.weights.bits = kFloatBits;
  recipe.a_budget = recipe.w_budget = 0;
  return recipe;
}

// The first windows of the stream are the float model's; behind them those that were rounded at one
// place, one after another.
class ErrorMeter {
 public:
  ErrorMeter(const Recipe& recipe, const ModelConfig& config, const Transformer& transformer,
             Progress& progress)
      : recipe_(recipe),
        layers_(config.layers),
        stream_(config, transformer.online(), of_activations(recipe), progress) {}

  // Room for all that the layers will add to so many tokens.
  Status reserve(int64_t tokens) {
    const auto places = static_cast<int64_t>(kSites.size()) * kinds();
    return stream_.reserve(tokens * (1 + layers_ * places));
  }

  Status add_window(std::span<const Token> tokens, Matrix rows) {
    ++originals_;
    return stream_.add_window(tokens, std::move(rows));
  }

  // The layer, in its bases, is the next one.
  Status pass(int64_t index, Layer layer) {
    const int64_t before = stream_.windows();
    layer.activation_bits.fill(kFloatBits);
    if (recipe_.a_budget > 0) {
      for (const Space site : kSites) QUAROT_RETURN_IF_ERROR(round_activations(index, site, layer));
    }
    if (recipe_.w_budget > 0) QUAROT_RETURN_IF_ERROR(round_weights(index, layer));
    return run(index, layer, 0, before);
  }

  // By layer and site, of the activations, or of the weights.
  SiteErrors errors(bool of_weights) const {
    const auto sites = static_cast<int64_t>(kSites.size());
    const int64_t a_layer = kinds() * sites * originals_;
    const int64_t skipped = of_weights && recipe_.a_budget > 0 ? sites * originals_ : 0;
    SiteErrors errors;
    for (int64_t at = originals_ + skipped; at < stream_.windows(); at += a_layer) {
      auto& layer = errors.emplace_back();
      for (int64_t i = 0; i < sites * originals_; ++i) {
        layer[static_cast<size_t>(i / originals_)] +=
            relative_error(stream_.residual(at + i), stream_.residual(i % originals_));
      }
    }
    return errors;
  }

 private:
  int64_t kinds() const { return (recipe_.a_budget > 0 ? 1 : 0) + (recipe_.w_budget > 0 ? 1 : 0); }

  Status run(int64_t index, Layer& layer, int64_t first, int64_t last) {
    stream_.put_layer(index, std::move(layer));
    const Status status = stream_.run_layer_for(first, last);
    layer = stream_.take_layer();
    return status;
  }

  Status run_rounded(int64_t index, Layer& layer) {
    const int64_t first = stream_.windows();
    for (int64_t w = 0; w < originals_; ++w) QUAROT_RETURN_IF_ERROR(stream_.repeat_window(w));
    return run(index, layer, first, stream_.windows());
  }

  Status round_activations(int64_t index, Space site, Layer& layer) {
    layer.activation_bits[site_index(site)] = recipe_.precision.activations.bits;
    QUAROT_RETURN_IF_ERROR(run_rounded(index, layer));
    layer.activation_bits[site_index(site)] = kFloatBits;
    return {};
  }

  Status round_weights(int64_t index, Layer& layer) {
    Layer rounded = layer;
    QUAROT_RETURN_IF_ERROR(round_to_nearest(recipe_, index, rounded));
    dequantize(rounded);
    const auto exchange = [&](Space site) {
      for (const Role role : kRoles) {
        if (spaces_of(role).input == site) std::swap(layer[role], rounded[role]);
      }
    };
    for (const Space site : kSites) {
      exchange(site);
      QUAROT_RETURN_IF_ERROR(run_rounded(index, layer));
      exchange(site);
    }
    return {};
  }

  const Recipe& recipe_;
  int64_t layers_;
  CpuLayerStream stream_;
  int64_t originals_ = 0;
};

}  // namespace

std::vector<std::vector<bool>> choose_within(double budget, int bits, const SiteErrors& errors,
                                             const ModelConfig& config) {
  struct Place {
    size_t layer, site;
    double cost, gain;
  };
  std::vector<Place> places;
  double room = 0;
  for (size_t layer = 0; layer < errors.size(); ++layer) {
    for (const Space site : kSites) {
      const double cost = multiply_adds(site, config);
      places.push_back({layer, site_index(site), cost, errors[layer][site_index(site)] / cost});
      room += cost * (budget - bits) / (kMoreBits - bits);
    }
  }
  std::ranges::stable_sort(places, std::greater(), &Place::gain);
  std::vector<std::vector<bool>> chosen(kSites.size(), std::vector<bool>(errors.size()));
  for (const Place& place : places) {
    if (place.cost > room * (1 + 1e-9)) continue;
    room -= place.cost;
    chosen[place.site][place.layer] = true;
  }
  return chosen;
}

Result<Recipe> choose_bits(const Recipe& recipe, const ModelConfig& config,
                           std::span<const std::vector<Token>> windows, LayerPipeline::Embed embed,
                           const NextLayer& floats, Progress& progress, Device device,
                           const std::optional<Orthogonal>& found) {
  if (!recipe.has_budget()) return recipe;
  QUAROT_ASSIGN_OR_RETURN(
      const auto pipeline,
      LayerPipeline::create(with_float_weights(recipe), config, progress, device, found));
  QUAROT_RETURN_IF_ERROR(pipeline->begin(windows, embed));
  ErrorMeter meter(recipe, config, pipeline->transformer(), progress);
  QUAROT_RETURN_IF_ERROR(meter.reserve(kWindows * kTokens));
  for (const std::vector<Token>& window : windows.first(std::min(kWindows, windows.size()))) {
    const auto tokens = std::span(window).first(std::min<size_t>(kTokens, window.size()));
    QUAROT_ASSIGN_OR_RETURN(Matrix rows, embed(tokens));
    pipeline->transformer().transform_embedding(rows);
    QUAROT_RETURN_IF_ERROR(meter.add_window(tokens, std::move(rows)));
  }
  progress.stage("finding where more bits help", config.layers);
  for (int64_t i = 0; i < config.layers; ++i) {
    QUAROT_ASSIGN_OR_RETURN(Layer layer, floats());
    QUAROT_RETURN_IF_ERROR(pipeline->finish(i, layer));
    QUAROT_RETURN_IF_ERROR(meter.pass(i, std::move(layer)));
    progress.advance(1);
  }
  Recipe chosen = recipe;
  chosen.a_budget = chosen.w_budget = 0;
  const auto add_rules = [&](double budget, int bits, bool of_weights) {
    if (budget == 0) return;
    const auto more = choose_within(budget, bits, meter.errors(of_weights), config);
    for (const Space site : kSites) {
      const BitsRule rule = rule_for(site, more[site_index(site)], of_weights ? kMoreBits : 0,
                                     of_weights ? 0 : kMoreBits);
      if (!rule.layers.empty()) chosen.site_bits.push_back(rule);
    }
  };
  add_rules(recipe.a_budget, recipe.precision.activations.bits, false);
  add_rules(recipe.w_budget, recipe.weights.bits, true);
  return chosen;
}

}  // namespace quarot
