#include "probe/probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/memory.h"
#include "probe/attribute.h"
#include "recipe/quantize.h"
#include "recipe/residual_basis.h"
#include "runtime/simulated_backend.h"

namespace quarot {

namespace {

constexpr int64_t kLogitRows = 128;  // on which the logits are compared

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
  if (!std::isfinite(norm_of(logits))) {
    return error(ErrorCode::kCorrupt,
                 "the model's logits are no finite numbers: is one of its weights damaged?");
  }
  return logits;
}

// What is read from a checkpoint and moved into the bases of a recipe, nothing rounded.
Result<Model> moved_model(const Checkpoint& checkpoint, Recipe recipe, const Windows& windows,
                          const std::optional<Orthogonal>& found, Progress& progress) {
  recipe.weights.bits = recipe.embedding_bits = recipe.head_bits = kFloatBits;
  QUAROT_ASSIGN_OR_RETURN(Model model, load_outer(checkpoint));
  QUAROT_ASSIGN_OR_RETURN(const FinishedLayers layers,
                          quantize_model(recipe, windows, layers_of(checkpoint, model.config),
                                         model, progress, Device::kCpu, found));
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
    probe_.peak_bytes = peak_resident_bytes();
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
    // A token alone predicts nothing.
    for (size_t i = first;
         i < windows_.size() && probe_.attributed + 2 <= options_.attribution_tokens; ++i) {
      const size_t room = static_cast<size_t>(options_.attribution_tokens - probe_.attributed);
      const std::vector<Token>& window = windows_[i];
      attributed_.emplace_back(
          window.begin(), window.begin() + static_cast<int64_t>(std::min(room, window.size())));
      probe_.attributed += static_cast<int64_t>(attributed_.back().size());
    }
  }

  Status probe_own(bool all) {
    progress_.stage("loading", 1);
    QUAROT_ASSIGN_OR_RETURN(Model model, load_model(checkpoint_));
    QUAROT_ASSIGN_OR_RETURN(found_,
                            residual_basis(
                                recipe_, model.config, windows_,
                                [&](std::span<const Token> tokens) {
                                  return Result<Matrix>(embedding_rows(model.embedding, tokens));
                                },
                                layers_of(checkpoint_, model.config), progress_));
    progress_.stage(all ? "treating each layer" : "looking at activations", model.config.layers);
    QUAROT_ASSIGN_OR_RETURN(
        logits_, run_layers(model, windows_, progress_,
                            [&](int64_t layer, const PointRows& rows, ConstMatrixRef stream) {
                              return see_own(model, layer, rows, stream, all);
                            }));
    probe_.loud_places = loudness_.loudest_places();
    if (!all) return {};
    progress_.stage("rounding the model as it is", 1);
    Attribution attribution(model, recipe_, attributed_);
    return attribute_own(attribution, probe_, progress_);
  }

  Status see_own(const Model& model, int64_t index, const PointRows& rows, ConstMatrixRef stream,
                 bool all) {
    LayerProbe& probe = probe_.layers[static_cast<size_t>(index)];
    const Layer& layer = model.layers[static_cast<size_t>(index)];
    for (size_t p = 0; p < kPoints.size(); ++p) {
      probe.points[p].before = site_statistics(rows[p]);
      if (p < kSites.size()) loudness_.see_site(index, p, probe.points[p].before, rows[p]);
    }
    for (const Role role : kRoles)
      probe.weight_incoherence[static_cast<size_t>(role)] = incoherence(layer[role].weight);
    loudness_.see_stream(index, stream);
    if (!all) return {};
    const int64_t calibrating = rows[0].rows() - probe_.held_out;
    const auto calibration_of = [&](ConstMatrixRef each) {
      return calibrating > 0 ? each.rows(0, calibrating) : each;
    };
    const auto held_out_of = [&](ConstMatrixRef each) {
      return each.rows(std::max<int64_t>(calibrating, 0), probe_.held_out);
    };
    SiteRows calibration, held_out;
    for (size_t s = 0; s < kSites.size(); ++s) {
      calibration[s] = Matrix(calibration_of(rows[s]));
      held_out[s] = Matrix(held_out_of(rows[s]));
    }
    const auto treated = [&](const CacheQuant& quant, size_t p) {
      return treat_cache(quant, model.config.head_dim, calibration_of(rows[p]),
                         held_out_of(rows[p]));
    };
    probe.keys = treated(recipe_.precision.keys, kKeyPoint);
    probe.values = treated(recipe_.precision.values, kValuePoint);
    QUAROT_ASSIGN_OR_RETURN(probe.treatments, try_treatments(model.config, rotation(), found_,
                                                             index, layer, calibration, held_out));
    return {};
  }

  // The recipe's, or, of a recipe that does not rotate, the paper's.
  TransformSpec rotation() const {
    if (recipe_.transforms.any()) return recipe_.transforms;
    return {.residual = true, .value = true, .heads = true, .query_key = true, .ffn = true};
  }

  Status probe_rotated(bool all) {
    QUAROT_ASSIGN_OR_RETURN(Model model,
                            moved_model(checkpoint_, recipe_, windows_, found_, progress_));
    QUAROT_RETURN_IF_ERROR(look_at_rotated(model));
    probe_.surface = loudness_.take_surface();
    if (!all) return {};
    progress_.stage("rounding the rotated model", 1);
    Attribution attribution(model, recipe_, attributed_);
    return attribute_rotated(attribution, probe_, progress_);
  }

  Status look_at_rotated(const Model& model) {
    progress_.stage("looking at rotated activations", model.config.layers);
    QUAROT_ASSIGN_OR_RETURN(
        const Matrix logits,
        run_layers(model, windows_, progress_,
                   [&](int64_t index, const PointRows& rows, ConstMatrixRef) -> Status {
                     see_rotated(model, index, rows);
                     return {};
                   }));
    probe_.logit_error = relative_distance(logits, logits_);
    logits_ = Matrix();  // of a large vocabulary they are large
    return {};
  }

  void see_rotated(const Model& model, int64_t index, const PointRows& rows) {
    LayerProbe& probe = probe_.layers[static_cast<size_t>(index)];
    for (size_t p = 0; p < kPoints.size(); ++p) probe.points[p].after = site_statistics(rows[p]);
    for (const Role role : kRoles) {
      probe.rotated_weight_incoherence[static_cast<size_t>(role)] =
          incoherence(model.layers[static_cast<size_t>(index)][role].weight);
    }
    for (size_t s = 0; s < kSites.size(); ++s) loudness_.see_rotated(index, s, rows[s]);
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
                              moved_model(checkpoint_, recipe, windows_, found_, progress_));
      Attribution attribution(model, recipe, attributed_);
      probe_.attribution.push_back(
          {"rotated", "rotation", name, false, attribution.run(Selection::all())});
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
  std::optional<Orthogonal> found_;
  Matrix logits_;
  Loudness loudness_{tokenizer_, windows_};
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
