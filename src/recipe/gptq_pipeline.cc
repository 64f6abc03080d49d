#include "recipe/gptq_pipeline.h"

#include "base/error.h"
#include "base/function_ref.h"
#include "runtime/simulated_backend.h"

namespace quarot {

namespace {

// Adds what one space of one layer carries to a Hessian.
class HessianObserver final : public SiteObserver {
 public:
  HessianObserver(int64_t layer, Space space, Hessian& hessian)
      : layer_(layer), space_(space), hessian_(&hessian) {}

  void observe(int64_t layer, Space space, ConstMatrixRef rows) override {
    if (layer == layer_ && space == space_) hessian_->add(rows);
  }

 private:
  int64_t layer_;
  Space space_;
  Hessian* hessian_;
};

class GptqPipeline {
 public:
  GptqPipeline(const Recipe& recipe, Model& model, Progress& progress)
      : recipe_(recipe),
        model_(model),
        progress_(progress),
        backend_(model, recipe.gptq_quantized_inputs ? recipe.precision : Precision()) {}

  Status run(const std::vector<std::vector<Token>>& windows) {
    constexpr int64_t kPasses = 5;
    progress_.stage("rounding weights by GPTQ",
                    kPasses * model_.config.layers * static_cast<int64_t>(windows.size()));
    QUAROT_RETURN_IF_ERROR(embed(windows));
    for (int64_t layer = 0; layer < model_.config.layers; ++layer)
      QUAROT_RETURN_IF_ERROR(round_layer(layer));
    for (Layer& layer : model_.layers) {
      for (Linear& linear : layer.linears) linear.weight = Matrix();
    }
    return {};
  }

 private:
  Status embed(const std::vector<std::vector<Token>>& windows) {
    for (const std::vector<Token>& window : windows) {
      const Batch batch{window, {{0, 0, static_cast<int64_t>(window.size()), 0}}};
      QUAROT_RETURN_IF_ERROR(check_batch(batch, model_.config));
      SimulatedBackend::State state;
      backend_.embed(batch);
      backend_.exchange(state);
      states_.push_back(std::move(state));
    }
    return {};
  }

  // Each step runs all windows up to the inputs of some linears, then rounds these. What a step
  // computes after the last rounding is kept in the windows' states, or computed again where
  // keeping it would take more room.
  Status round_layer(int64_t l) {
    QUAROT_RETURN_IF_ERROR(round(l, Space::kAttentionInput,
                                 {Role::kQuery, Role::kKey, Role::kValue},
                                 [&] { backend_.normalize(l, Space::kAttentionInput); }));
    QUAROT_RETURN_IF_ERROR(round(l, Space::kAttentionOutput, {Role::kOutput}, [&] {
      const int sequence = backend_.add_sequence();  // id 0: the only one at a time
      backend_.normalize(l, Space::kAttentionInput);
      backend_.project_qkv(l);
      backend_.append_cache(l);
      backend_.attend(l);
      backend_.drop_sequence(sequence);
      backend_.mix_heads(l);
    }));
    QUAROT_RETURN_IF_ERROR(round(l, Space::kFfnInput, {Role::kGate, Role::kUp}, [&] {
      backend_.project_output(l);
      backend_.normalize(l, Space::kFfnInput);
    }));
    const auto hidden = [&] {
      backend_.normalize(l, Space::kFfnInput);
      backend_.project_gate_up(l);
      backend_.gate(l);
    };
    QUAROT_RETURN_IF_ERROR(round(l, Space::kFfnHidden, {Role::kDown}, hidden));
    return for_each_window([&] {
      hidden();
      backend_.project_down(l);
    });
  }

  Status round(int64_t layer, Space space, std::initializer_list<Role> readers,
               FunctionRef<void()> step) {
    Hessian hessian(model_.config.width(space));
    HessianObserver observer(layer, space, hessian);
    backend_.set_observer(&observer);
    const Status ran = for_each_window(step);
    backend_.set_observer(nullptr);
    QUAROT_RETURN_IF_ERROR(ran);
    for (const Role role : readers) {
      Linear& linear = model_.layers[static_cast<size_t>(layer)][role];
      Result<QuantizedWeight> rounded = gptq(recipe_.weights, recipe_.gptq, linear.weight, hessian);
      if (!rounded.ok()) return rounded.error().with_context(linear_name(layer, role));
      linear.weight = rounded->dequantize();
      linear.quantized = *std::move(rounded);
    }
    return {};
  }

  Status for_each_window(FunctionRef<void()> step) {
    for (SimulatedBackend::State& state : states_) {
      QUAROT_RETURN_IF_ERROR(progress_.check());
      backend_.exchange(state);
      step();
      backend_.exchange(state);
      progress_.advance(1);
    }
    return {};
  }

  const Recipe& recipe_;
  Model& model_;
  Progress& progress_;
  SimulatedBackend backend_;
  std::vector<SimulatedBackend::State> states_;
};

}  // namespace

Status quantize_by_gptq(const Recipe& recipe, const std::vector<std::vector<Token>>& windows,
                        Model& model, Progress& progress) {
  return GptqPipeline(recipe, model, progress).run(windows);
}

}  // namespace quarot
