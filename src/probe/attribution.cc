#include "probe/attribution.h"

#include <cmath>
#include <memory>
#include <numeric>

#include "probe/site_statistics.h"
#include "quant/grid.h"
#include "runtime/layer_stream.h"
#include "runtime/vector_math.h"

namespace quarot {

namespace {

// All channels of a site kept float: the site is not quantised.
ChannelOrder all_kept(int64_t width) {
  ChannelOrder order;
  order.channels.resize(static_cast<size_t>(width));
  std::iota(order.channels.begin(), order.channels.end(), 0);
  order.kept = width;
  return order;
}

double divergence(std::span<const float> p, std::span<const float> q) {
  const double p_lse = log_sum_exp(p);
  const double q_lse = log_sum_exp(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = double{p[i]} - p_lse;
    sum += std::exp(log_p) * (log_p - (double{q[i]} - q_lse));
  }
  return sum;
}

}  // namespace

Selection Selection::none() { return of({.layer = {}, .point = {}, .inside = false}); }
Selection Selection::all() { return of({}); }
Selection Selection::only_site(Space site) { return of({.layer = {}, .point = site}); }
Selection Selection::all_but_site(Space site) {
  return of({.layer = {}, .point = site, .inside = false});
}
Selection Selection::only_layer(int64_t layer) { return of({.layer = layer, .point = {}}); }
Selection Selection::all_but_layer(int64_t layer) {
  return of({.layer = layer, .point = {}, .inside = false});
}
Selection Selection::only(int64_t layer, Space point) {
  return of({.layer = layer, .point = point});
}

Attribution::Attribution(Model& model, const Recipe& recipe,
                         const std::vector<std::vector<Token>>& windows)
    : model_(model), precision_(recipe.precision) {
  for (const std::vector<Token>& window : windows) {
    const auto count = static_cast<int64_t>(window.size());
    batch_.chunks.push_back({static_cast<int>(batch_.chunks.size()), batch_.rows(), count, 0});
    batch_.tokens.insert(batch_.tokens.end(), window.begin(), window.end());
  }
  precision_.kept = {};
  precision_.pages = {};
  for (const Layer& layer : model_.layers) {
    auto& grids = grids_.emplace_back();
    for (const Role role : kRoles) {
      QuantizedWeight rounded = round_to_nearest(recipe.weights, layer[role].weight);
      grids[static_cast<size_t>(role)] = {rounded.quant, std::move(rounded.scales),
                                          std::move(rounded.zeros)};
    }
  }
  float_logits_ = logits(Selection::none(), 0, {}, &float_residuals_);
  float_loss_ = score(float_logits_);
}

Matrix Attribution::Grids::rounded(ConstMatrixRef weight) const {
  Matrix result(weight);
  const int64_t group = group_size(quant, weight.cols());
  const int32_t half = 1 << (quant.bits - 1);
  for_each_group(weight.rows(), weight.cols(), group, [&](int64_t r, int64_t g) {
    const Grid grid{scales(r, g), zeros(r, g), -half, half - 1};
    simulate(grid,
             result.row(r).subspan(static_cast<size_t>(g * group), static_cast<size_t>(group)));
  });
  return result;
}

Precision Attribution::precision(bool keys, bool values) const {
  Precision precision = precision_;
  if (!keys) precision.keys.bits = kFloatBits;
  if (!values) precision.values.bits = kFloatBits;
  return precision;
}

void Attribution::select(const Selection& selection, int64_t layer) {
  Layer& own = model_.layers[static_cast<size_t>(layer)];
  for (const Role role : kRoles) {
    const auto i = static_cast<size_t>(role);
    if (!selection.weights.contains(layer, spaces_of(role).input)) continue;
    floats_[i] = std::move(own[role].weight);
    own[role].weight = grids_[static_cast<size_t>(layer)][i].rounded(floats_[i]);
  }
  for (const Space site : kSites) {
    if (!selection.activations.contains(layer, site))
      own.orders[site_index(site)] = all_kept(model_.config.width(site));
  }
}

void Attribution::restore(int64_t layer) {
  Layer& own = model_.layers[static_cast<size_t>(layer)];
  for (const Role role : kRoles) {
    Matrix& weight = floats_[static_cast<size_t>(role)];
    if (!weight.empty()) own[role].weight = std::exchange(weight, Matrix());
  }
  own.orders = {};
}

Matrix Attribution::logits(const Selection& selection, int64_t first,
                           const std::vector<Matrix>& residuals, std::vector<Matrix>* kept) {
  // A backend has one precision for the caches of all layers: there is one for each that is wanted,
  // and the stream goes from one to the other.
  std::array<std::unique_ptr<SimulatedBackend>, 4> backends;
  const auto backend_of = [&](int64_t layer) -> SimulatedBackend& {
    const bool keys = selection.keys.contains(layer, Space::kKey);
    const bool values = selection.values.contains(layer, Space::kValue);
    auto& backend = backends[(keys ? 2U : 0U) + (values ? 1U : 0U)];
    if (!backend) {
      backend = std::make_unique<SimulatedBackend>(model_, precision(keys, values));
      for (size_t i = 0; i < batch_.chunks.size(); ++i) backend->add_sequence();  // 0, 1, …
    }
    return *backend;
  };
  SimulatedBackend::State state{.batch = batch_, .residual = {}, .attention = {}};
  state.residual = first > 0 ? Matrix(residuals[static_cast<size_t>(first)].view())
                             : embedding_rows(model_.embedding, batch_.tokens);
  for (int64_t layer = first; layer < model_.config.layers; ++layer) {
    if (kept != nullptr) kept->emplace_back(state.residual.view());
    SimulatedBackend& backend = backend_of(layer);
    backend.exchange(state);
    select(selection, layer);
    forward_layer(backend, layer);
    restore(layer);
    backend.exchange(state);
  }
  if (kept != nullptr) kept->emplace_back(state.residual.view());
  SimulatedBackend& backend = backend_of(model_.config.layers - 1);
  backend.exchange(state);
  Matrix logits(batch_.rows(), model_.config.vocab);
  backend.logits(0, batch_.rows(), logits);
  return logits;
}

Loss Attribution::score(const Matrix& logits) const {
  Loss loss;
  const auto scored = static_cast<double>(batch_.tokens.size() - batch_.chunks.size());
  for (const SequenceChunk& chunk : batch_.chunks) {
    for (int64_t r = chunk.first_row; r + 1 < chunk.first_row + chunk.count; ++r) {
      const std::span<const float> row = logits.row(r);
      const auto target = static_cast<size_t>(batch_.tokens[static_cast<size_t>(r + 1)]);
      loss.nll += (double{log_sum_exp(row)} - row[target]) / scored;
      loss.kl += divergence(float_logits_.row(r), row) / scored;
    }
  }
  return loss;
}

Loss Attribution::run(const Selection& selection, int64_t first,
                      const std::vector<Matrix>& residuals) {
  return score(logits(selection, first, residuals, nullptr));
}

Attribution::Depth Attribution::run_all() {
  Depth depth;
  rounded_residuals_.clear();
  depth.loss = score(logits(Selection::all(), 0, {}, &rounded_residuals_));
  for (size_t i = 1; i < rounded_residuals_.size(); ++i)
    depth.errors.push_back(relative_distance(rounded_residuals_[i], float_residuals_[i]));
  return depth;
}

}  // namespace quarot
