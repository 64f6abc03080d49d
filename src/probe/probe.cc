#include "probe/probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "recipe/principal_basis.h"
#include "recipe/quantize.h"
#include "runtime/simulated_backend.h"

namespace quarot {

namespace {

constexpr int64_t kLogitRows = 128;     // on which the logits are compared
constexpr int64_t kSurfaceTokens = 24;  // of the first window
constexpr int64_t kSurfaceBins = 144;
constexpr size_t kLoudPlaces = 8;

using Windows = std::vector<std::vector<Token>>;

// What all points of one layer carry, the windows one after another.
class PointRows final : public SiteObserver {
 public:
  void observe(int64_t, Space space, ConstMatrixRef rows) override {
    const auto point = std::ranges::find(kPoints, space);
    if (point != kPoints.end()) rows_[static_cast<size_t>(point - kPoints.begin())] = Matrix(rows);
  }
  const Matrix& operator[](size_t point) const { return rows_[point]; }

 private:
  std::array<Matrix, kPoints.size()> rows_;
};

Batch batch_of(SimulatedBackend& backend, const Windows& windows) {
  Batch batch;
  for (const std::vector<Token>& window : windows) {
    const auto count = static_cast<int64_t>(window.size());
    batch.chunks.push_back({backend.add_sequence(), batch.rows(), count, 0});
    batch.tokens.insert(batch.tokens.end(), window.begin(), window.end());
  }
  return batch;
}

using SeeLayer = FunctionRef<Status(int64_t layer, const PointRows& rows, ConstMatrixRef stream)>;

// Runs the float model over the windows, layer by layer, and gives the logits of the first rows.
Result<Matrix> run_layers(const Model& model, const Windows& windows, Progress& progress,
                          SeeLayer see) {
  SimulatedBackend backend(model, {});
  const Batch batch = batch_of(backend, windows);
  QUAROT_RETURN_IF_ERROR(check_batch(batch, model.config));
  PointRows rows;
  backend.set_observer(&rows);
  backend.embed(batch);
  SimulatedBackend::State state{.batch = batch, .residual = {}, .attention = {}};
  for (int64_t layer = 0; layer < model.config.layers; ++layer) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    forward_layer(backend, layer);
    backend.exchange(state);
    const Status seen = see(layer, rows, state.residual);
    backend.exchange(state);
    QUAROT_RETURN_IF_ERROR(seen);
    progress.advance(1);
  }
  Matrix logits(std::min(kLogitRows, batch.rows()), model.config.vocab);
  backend.logits(0, logits.rows(), logits);
  return logits;
}

Matrix in_bins(ConstMatrixRef rows, int64_t tokens) {
  const int64_t size = std::max<int64_t>((rows.cols() + kSurfaceBins - 1) / kSurfaceBins, 1);
  Matrix bins(std::min(tokens, rows.rows()), (rows.cols() + size - 1) / size, 0.0F);
  for (int64_t r = 0; r < bins.rows(); ++r) {
    for (int64_t c = 0; c < rows.cols(); ++c)
      bins(r, c / size) = std::max(bins(r, c / size), std::abs(rows(r, c)));
  }
  return bins;
}

// What is read from a checkpoint and moved into the bases of a recipe, nothing rounded.
Result<Model> moved_model(const Checkpoint& checkpoint, Recipe recipe, const Windows& windows,
                          const std::optional<Orthogonal>& principal, Progress& progress) {
  recipe.weights.bits = recipe.embedding_bits = recipe.head_bits = kFloatBits;
  QUAROT_ASSIGN_OR_RETURN(Model model, load_outer(checkpoint));
  QUAROT_ASSIGN_OR_RETURN(const FinishedLayers layers,
                          quantize_model(recipe, windows, layers_of(checkpoint, model.config),
                                         model, progress, Device::kCpu, principal));
  QUAROT_RETURN_IF_ERROR(complete(model, layers.next));
  return model;
}

class Prober {
 public:
  Prober(const Checkpoint& checkpoint, const Tokenizer& tokenizer, const Recipe& recipe,
         Windows windows, const ProbeOptions& options, Progress& progress)
      : checkpoint_(checkpoint),
        tokenizer_(tokenizer),
        recipe_(recipe),
        windows_(std::move(windows)),
        options_(options),
        progress_(progress) {}

  Result<Probe> run(bool all) {
    const auto start = std::chrono::steady_clock::now();
    QUAROT_RETURN_IF_ERROR(begin());
    QUAROT_RETURN_IF_ERROR(probe_own(all));
    QUAROT_RETURN_IF_ERROR(probe_rotated(all));
    if (all) {
      QUAROT_RETURN_IF_ERROR(probe_rotations());
      progress_.stage("measuring operators", 1);
      probe_.operators = measure_operators(probe_.config);
    }
    probe_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(probe_);
  }

 private:
  Status begin() {
    if (checkpoint_.manifest()) {
      return error(ErrorCode::kInvalidArgument,
                   "{}: this model carries a recipe already; give the original model",
                   checkpoint_.path().string());
    }
    QUAROT_ASSIGN_OR_RETURN(probe_.config,
                            parse_config(checkpoint_.config(), checkpoint_.path().string()));
    split_windows();
    for (const std::vector<Token>& window : windows_) {
      if (window.size() < 2)
        return error(ErrorCode::kInvalidArgument, "the text is too short: a window of one token");
    }
    recipe_ = fitted(recipe_, probe_.config);
    recipe_.embedding_bits = recipe_.head_bits = kFloatBits;
    if (!recipe_.weights.enabled()) recipe_.weights.bits = 4;
    if (!recipe_.precision.activations.enabled()) recipe_.precision.activations.bits = 4;
    QUAROT_RETURN_IF_ERROR(check(recipe_, probe_.config));
    probe_.model = checkpoint_.path().string();
    probe_.format = checkpoint_.format();
    probe_.recipe = recipe_.name;
    probe_.bits = bits_label(recipe_);
    probe_.windows = static_cast<int64_t>(windows_.size());
    probe_.layers.resize(static_cast<size_t>(probe_.config.layers));
    for (const auto& window : windows_) probe_.tokens += static_cast<int64_t>(window.size());
    return {};
  }

  // One long window is cut in four, so that some can be held out; the last are.
  void split_windows() {
    if (windows_.size() == 1 && windows_[0].size() >= 16) {
      const std::vector<Token> whole = std::move(windows_[0]);
      const size_t quarter = whole.size() / 4;
      windows_.clear();
      for (size_t i = 0; i < 4; ++i) {
        const auto begin = whole.begin() + static_cast<int64_t>(i * quarter);
        windows_.emplace_back(begin, i < 3 ? begin + static_cast<int64_t>(quarter) : whole.end());
      }
    }
    size_t first = windows_.size();
    while (first > 1 && probe_.held_out < options_.held_out_tokens)
      probe_.held_out += static_cast<int64_t>(windows_[--first].size());
    if (first == windows_.size()) --first;
    for (size_t i = first; i < windows_.size() && probe_.attributed < options_.attribution_tokens;
         ++i) {
      const size_t room = static_cast<size_t>(options_.attribution_tokens - probe_.attributed);
      const std::vector<Token>& window = windows_[i];
      attributed_.emplace_back(
          window.begin(), window.begin() + static_cast<int64_t>(std::min(room, window.size())));
      if (attributed_.back().size() < 2) attributed_.pop_back();
      probe_.attributed += static_cast<int64_t>(attributed_.back().size());
    }
  }

  Status probe_own(bool all) {
    progress_.stage("loading", 1);
    QUAROT_ASSIGN_OR_RETURN(Model model, load_model(checkpoint_));
    if (recipe_.uses_principal_basis()) {
      QUAROT_ASSIGN_OR_RETURN(
          principal_, principal_basis(recipe_, windows_, layers_of(checkpoint_, model.config),
                                      model, progress_));
    }
    progress_.stage(all ? "treating each layer" : "looking at activations", model.config.layers);
    QUAROT_ASSIGN_OR_RETURN(
        logits_, run_layers(model, windows_, progress_,
                            [&](int64_t layer, const PointRows& rows, ConstMatrixRef stream) {
                              return see_own(model, layer, rows, stream, all);
                            }));
    rank_loud_places();
    if (all) QUAROT_RETURN_IF_ERROR(attribute_own(model));
    return {};
  }

  Status see_own(const Model& model, int64_t index, const PointRows& rows, ConstMatrixRef stream,
                 bool all) {
    LayerProbe& probe = probe_.layers[static_cast<size_t>(index)];
    const Layer& layer = model.layers[static_cast<size_t>(index)];
    for (size_t p = 0; p < kPoints.size(); ++p) {
      probe.points[p].before = site_statistics(rows[p]);
      if (p < kSites.size()) consider_surface(index, p, probe.points[p].before, rows[p]);
    }
    for (const Role role : kRoles)
      probe.weight_incoherence[static_cast<size_t>(role)] = incoherence(layer[role].weight);
    note_loud_places(index, stream);
    if (!all) return {};
    const int64_t calibrating = rows[0].rows() - probe_.held_out;
    SiteRows calibration, held_out;
    for (size_t s = 0; s < kSites.size(); ++s) {
      const ConstMatrixRef site = rows[s];
      calibration[s] = Matrix(calibrating > 0 ? site.rows(0, calibrating) : site);
      held_out[s] = Matrix(site.rows(std::max<int64_t>(calibrating, 0), probe_.held_out));
    }
    QUAROT_ASSIGN_OR_RETURN(probe.treatments, try_treatments(model.config, rotation(), principal_,
                                                             index, layer, calibration, held_out));
    return {};
  }

  // The recipe's, or, of a recipe that does not rotate, the paper's.
  TransformSpec rotation() const {
    if (recipe_.transforms.any()) return recipe_.transforms;
    return {.residual = true, .value = true, .heads = true, .query_key = true, .ffn = true};
  }

  void consider_surface(int64_t layer, size_t site, const SiteStatistics& statistics,
                        const Matrix& rows) {
    if (statistics.peak_over_rms <= loudest_) return;
    loudest_ = statistics.peak_over_rms;
    Surface& surface = probe_.surface;
    surface = {.layer = layer, .site = site};
    surface.channels = rows.cols();
    const auto tokens = std::min<int64_t>(kSurfaceTokens, static_cast<int64_t>(windows_[0].size()));
    surface.before = in_bins(rows, tokens);
    for (int64_t t = 0; t < tokens; ++t)
      surface.tokens.push_back(
          tokenizer_.decode(std::span(&windows_[0][static_cast<size_t>(t)], 1)));
    const std::vector<LoudElement> loudest = loudest_of_rows(ConstMatrixRef(rows).rows(0, tokens));
    const LoudElement& loud = *std::ranges::max_element(
        loudest, {}, [](const LoudElement& e) { return std::abs(e.value); });
    const std::span<const float> row = rows.row(loud.row);
    surface.loud_row.assign(row.begin(), row.end());
    Matrix alone(1, rows.cols(), 0.0F);
    alone(0, loud.channel) = rows(loud.row, loud.channel);
    Orthogonal::hadamard(rows.cols()).apply(alone.view());
    surface.spread.assign(alone.elements().begin(), alone.elements().end());
  }

  void note_loud_places(int64_t layer, ConstMatrixRef stream) {
    size_t window = 0;
    int64_t first = 0;
    for (const LoudElement& element : loudest_of_rows(stream)) {
      while (element.row - first >= static_cast<int64_t>(windows_[window].size()))
        first += static_cast<int64_t>(windows_[window++].size());
      const int64_t position = element.row - first;
      auto place = std::ranges::find_if(places_, [&](const LoudPlace& p) {
        return p.window == static_cast<int64_t>(window) && p.position == position &&
               p.channel == element.channel;
      });
      if (place == places_.end()) {
        const Token token = windows_[window][static_cast<size_t>(position)];
        place = places_.insert(places_.end(), {.window = static_cast<int64_t>(window),
                                               .position = position,
                                               .channel = element.channel,
                                               .token = tokenizer_.decode(std::span(&token, 1))});
      }
      if (element.massive()) ++place->layers;
      if (std::abs(element.value) <= std::abs(place->loudest.value)) continue;
      place->loudest = element;
      place->loudest_layer = layer;
    }
  }

  void rank_loud_places() {
    const auto rank = [](const LoudPlace& p) { return std::abs(p.loudest.value); };
    std::ranges::stable_sort(places_, std::greater<>(), rank);
    places_.resize(std::min(places_.size(), kLoudPlaces));
    probe_.loud_places = std::move(places_);
  }

  void add(std::string_view basis, std::string_view group, std::string_view part, bool only,
           const Loss& loss) {
    probe_.attribution.push_back(
        {std::string(basis), std::string(group), std::string(part), only, loss});
  }

  Status attribute_own(Model& model) {
    progress_.stage("quantising the model as it is", 2 + static_cast<int64_t>(kSites.size()));
    Attribution attribution(model, recipe_, attributed_);
    progress_.advance(1);
    probe_.float_loss = attribution.float_loss();
    const Attribution::Depth depth = attribution.run_all();
    probe_.depth_own = depth.errors;
    add("own", "all", "everything", true, depth.loss);
    for (const Space site : kSites) {
      QUAROT_RETURN_IF_ERROR(progress_.check());
      add("own", "site", space_name(site), true, attribution.run(Selection::only_site(site)));
      progress_.advance(1);
    }
    return {};
  }

  Status probe_rotated(bool all) {
    QUAROT_ASSIGN_OR_RETURN(Model model,
                            moved_model(checkpoint_, recipe_, windows_, principal_, progress_));
    progress_.stage("looking at rotated activations", model.config.layers);
    QUAROT_ASSIGN_OR_RETURN(
        const Matrix logits,
        run_layers(model, windows_, progress_,
                   [&](int64_t index, const PointRows& rows, ConstMatrixRef) -> Status {
                     see_rotated(model, index, rows);
                     return {};
                   }));
    probe_.logit_error = relative_distance(logits, logits_);
    if (all) QUAROT_RETURN_IF_ERROR(attribute_rotated(model));
    return {};
  }

  void see_rotated(const Model& model, int64_t index, const PointRows& rows) {
    LayerProbe& probe = probe_.layers[static_cast<size_t>(index)];
    for (size_t p = 0; p < kPoints.size(); ++p) probe.points[p].after = site_statistics(rows[p]);
    for (const Role role : kRoles) {
      probe.rotated_weight_incoherence[static_cast<size_t>(role)] =
          incoherence(model.layers[static_cast<size_t>(index)][role].weight);
    }
    Surface& surface = probe_.surface;
    if (surface.layer == index) surface.after = in_bins(rows[surface.site], surface.before.rows());
  }

  Status attribute_rotated(Model& model) {
    const int64_t layers = model.config.layers;
    progress_.stage("finding where the error comes from",
                    18 + layers * (2 + static_cast<int64_t>(kSites.size())));
    Attribution attribution(model, recipe_, attributed_);
    const Attribution::Depth depth = attribution.run_all();
    probe_.depth_rotated = depth.errors;
    add("rotated", "all", "everything", true, depth.loss);
    progress_.advance(2);
    QUAROT_RETURN_IF_ERROR(attribute_sites(attribution));
    QUAROT_RETURN_IF_ERROR(attribute_tensors(attribution));
    for (int64_t layer = 0; layer < layers; ++layer) {
      QUAROT_RETURN_IF_ERROR(progress_.check());
      const std::string name = fmt::format("{}", layer);
      add("rotated", "layer", name, true,
          attribution.run_only(layer, Selection::only_layer(layer)));
      add("rotated", "layer", name, false, attribution.run_all_but(layer));
      auto& row = probe_.heat.emplace_back();
      for (size_t s = 0; s < kSites.size(); ++s)
        row[s] = attribution.run_only(layer, Selection::only(layer, kSites[s])).kl;
      progress_.advance(2 + static_cast<int64_t>(kSites.size()));
    }
    return {};
  }

  Status attribute_sites(Attribution& attribution) {
    for (const Space site : kSites) {
      QUAROT_RETURN_IF_ERROR(progress_.check());
      add("rotated", "site", space_name(site), true, attribution.run(Selection::only_site(site)));
      add("rotated", "site", space_name(site), false,
          attribution.run(Selection::all_but_site(site)));
      progress_.advance(2);
    }
    return {};
  }

  Status attribute_tensors(Attribution& attribution) {
    for (const bool only : {true, false}) {
      for (const std::string_view kind : {"weights", "activations", "keys", "values"}) {
        QUAROT_RETURN_IF_ERROR(progress_.check());
        Selection selection = only ? Selection::none() : Selection::all();
        if (kind == "weights") selection.weights.inside = only;
        if (kind == "activations") selection.activations.inside = only;
        if (kind == "keys") selection.keys = only;
        if (kind == "values") selection.values = only;
        add("rotated", "tensor", kind, only, attribution.run(selection));
        progress_.advance(1);
      }
    }
    return {};
  }

  // Everything quantised, each rotation of the recipe left out in turn.
  Status probe_rotations() {
    using Flags = std::vector<bool TransformSpec::*>;
    const std::pair<const char*, Flags> rotations[] = {
        {"R1", {&TransformSpec::residual, &TransformSpec::norm_output}},
        {"R2", {&TransformSpec::value, &TransformSpec::heads}},
        {"R3", {&TransformSpec::query_key}},
        {"R4", {&TransformSpec::ffn}}};
    for (const auto& [name, flags] : rotations) {
      Recipe recipe = recipe_;
      for (const auto flag : flags) recipe.transforms.*flag = false;
      if (recipe.transforms == recipe_.transforms) continue;
      QUAROT_ASSIGN_OR_RETURN(Model model,
                              moved_model(checkpoint_, recipe, windows_, principal_, progress_));
      Attribution attribution(model, recipe, attributed_);
      add("rotated", "rotation", name, false, attribution.run(Selection::all()));
    }
    return {};
  }

  const Checkpoint& checkpoint_;
  const Tokenizer& tokenizer_;
  Recipe recipe_;
  Windows windows_, attributed_;
  ProbeOptions options_;
  Progress& progress_;
  Probe probe_;
  std::optional<Orthogonal> principal_;
  Matrix logits_;
  std::vector<LoudPlace> places_;
  double loudest_ = 0;
};

}  // namespace

const AttributionRow* Probe::find(std::string_view basis, std::string_view group,
                                  std::string_view part, bool only) const {
  const auto row = std::ranges::find_if(attribution, [&](const AttributionRow& r) {
    return r.basis == basis && r.group == group && r.part == part && r.only == only;
  });
  return row == attribution.end() ? nullptr : &*row;
}

Result<Probe> probe_model(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                          const Recipe& recipe, const std::vector<std::vector<Token>>& windows,
                          const ProbeOptions& options, Progress& progress) {
  return Prober(checkpoint, tokenizer, recipe, windows, options, progress).run(true);
}

Result<Probe> probe_statistics(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                               const Recipe& recipe, const std::vector<std::vector<Token>>& windows,
                               Progress& progress) {
  return Prober(checkpoint, tokenizer, recipe, windows, {}, progress).run(false);
}

}  // namespace quarot
