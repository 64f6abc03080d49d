// Measures recipes of one model and what was made of it earlier, one after another, on the same
// windows and tasks, and remembers what it has measured of recipes.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "engine/open_runnable.h"
#include "eval/perplexity.h"
#include "eval/result_store.h"
#include "eval/tasks.h"

namespace quarot {

struct EvaluatorOptions {
  std::vector<EvalWindow> windows;  // none: no perplexity
  std::string protocol;             // how they were cut, for people
  std::vector<Task> tasks;
  bool against_model =
      false;  // also the divergence from the model as it is, which runs beside each
  std::optional<std::filesystem::path> calibration;
  Device device = Device::kCpu;
  std::optional<ResultStore> store;
  std::string program;     // what measures: a version, and what tells its builds apart
  std::string model_hash;  // model_hash(), where there is a store
  // Called with each model once it is measured, or, where the store has all of it, not at all.
  std::function<Status(Backend&, Progress&)> also;
};

struct Measured {
  Recipe recipe;
  std::string calibration;  // for people, as PreparedModel has it
  std::optional<PerplexityResult> perplexity;
  std::vector<TaskResult> tasks;  // in the options' order
};

class Evaluator {
 public:
  // `model` must outlive it.
  static Result<Evaluator> create(const OpenModel& model, EvaluatorOptions options);

  const EvaluatorOptions& options() const { return options_; }

  // What the store has is taken from it; everything else is measured and kept at once. `next` is
  // the recipe to come: one that shares this one's weights will find them prepared.
  Result<Measured> measure(const Recipe& asked, const Recipe* next, Progress& progress);

  // A model as it is, with the recipe that it may carry: the one of create(), or another of the
  // same tokens. Never stored.
  Result<Measured> measure(const OpenModel& model, Progress& progress);

 private:
  // A model's own backend; null: it is the reference.
  using Opener = FunctionRef<Result<std::unique_ptr<Backend>>()>;

  Evaluator(const OpenModel& model, EvaluatorOptions options)
      : model_(&model), options_(std::move(options)) {}

  Result<Measured> measure(Measured measured, const std::optional<ResultStore>& store,
                           Opener opener, Progress& progress);

  ResultKey key_of(const Recipe& recipe) const;
  ResultKey perplexity_key(const Recipe& recipe) const;
  ResultKey task_key(const Recipe& recipe, size_t task) const;

  Result<PreparedModel> prepare(const OpenModel& model, const Recipe& recipe,
                                Progress& progress) const;
  Result<std::unique_ptr<Backend>> backend_of(PreparedModel prepared) const;
  Result<std::unique_ptr<Backend>> open(const Recipe& recipe, const Recipe* next,
                                        Progress& progress);
  Status open_reference(Progress& progress);

  const OpenModel* model_;
  EvaluatorOptions options_;
  ModelConfig config_;
  std::string calibration_hash_, windows_hash_;
  std::vector<std::string> task_hashes_;
  std::optional<PreparedModel> prepared_;  // kept for the next recipe
  std::unique_ptr<Backend> reference_;     // the model as it is, once it is needed
};

}  // namespace quarot
