#include "eval/evaluator.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "eval/result_json.h"
#include "runtime/make_backend.h"

namespace quarot {

namespace {

// Of the tokens and which of them are scored.
std::string hash_of(std::span<const EvalWindow> windows) {
  std::vector<int64_t> numbers;
  for (const EvalWindow& window : windows) {
    numbers.push_back(std::ssize(window.tokens));
    numbers.push_back(window.scored);
    numbers.insert(numbers.end(), window.tokens.begin(), window.tokens.end());
  }
  return content_hash(std::as_bytes(std::span(numbers)));
}

// A task's answers count beside its tokens.
std::string hash_of(const Task& task) {
  std::string hashes;
  for (const std::vector<EvalWindow>& item : task.items) hashes += hash_of(item);
  for (const TaskItem& item : task.texts) {
    hashes += fmt::format("{} ", item.gold.value_or(item.pairs.size()));
    for (const double norm : item.norm) hashes += fmt::format("{} ", norm);
  }
  return content_hash(hashes);
}

// The stored result of this key, or else the measured one, which is stored.
template <typename T, typename Measure>
Result<T> answer(const std::optional<ResultStore>& store, const ResultKey& key,
                 Result<T> (*parse)(const nlohmann::json&, const std::string&), Measure measure) {
  if (!store) return measure();
  QUAROT_ASSIGN_OR_RETURN(const std::optional<nlohmann::json> kept, store->find(key));
  if (kept) return parse(*kept, store->path(key).string());
  QUAROT_ASSIGN_OR_RETURN(const T result, measure());
  QUAROT_RETURN_IF_ERROR(store->keep(key, result));
  return result;
}

auto other_length(const char* what, size_t found, size_t expected) {
  return error(ErrorCode::kCorrupt,
               "a stored result is of {} {}, expected {}; delete the folder of results", found,
               what, expected);
}

}  // namespace

Result<Evaluator> Evaluator::create(const OpenModel& model, EvaluatorOptions options) {
  Evaluator evaluator(model, std::move(options));
  const EvaluatorOptions& given = evaluator.options_;
  const Checkpoint& checkpoint = *model.checkpoint;
  QUAROT_ASSIGN_OR_RETURN(evaluator.config_,
                          parse_config(checkpoint.config(), checkpoint.path().string()));
  if (given.calibration) {
    QUAROT_ASSIGN_OR_RETURN(const std::string text, read_text_file(*given.calibration));
    evaluator.calibration_hash_ = content_hash(text);
  }
  evaluator.windows_hash_ = hash_of(given.windows);
  for (const Task& task : given.tasks) evaluator.task_hashes_.push_back(hash_of(task));
  return evaluator;
}

Result<Measured> Evaluator::measure(const Recipe& asked, const Recipe* next, Progress& progress) {
  const Recipe recipe = fitted(asked, config_);
  const bool is_reference = options_.against_model && recipe.is_float() && !recipe.transforms.any();
  return measure(
      {recipe, calibration_source(recipe, options_.calibration), {}, {}}, options_.store,
      [&]() -> Result<std::unique_ptr<Backend>> {
        if (is_reference) return std::unique_ptr<Backend>();
        return open(recipe, next, progress);
      },
      progress);
}

Result<Measured> Evaluator::measure(const OpenModel& model, Progress& progress) {
  QUAROT_ASSIGN_OR_RETURN(Recipe recipe, recipe_of(*model.checkpoint));
  return measure(
      {std::move(recipe), "", {}, {}}, std::nullopt,
      [&]() -> Result<std::unique_ptr<Backend>> {
        if (options_.against_model && &model == model_) return std::unique_ptr<Backend>();
        QUAROT_ASSIGN_OR_RETURN(PreparedModel prepared, prepare(model, Recipe(), progress));
        return backend_of(std::move(prepared));
      },
      progress);
}

Result<Measured> Evaluator::measure(Measured measured, const std::optional<ResultStore>& store,
                                    Opener opener, Progress& progress) {
  const Recipe& recipe = measured.recipe;
  std::unique_ptr<Backend> own;
  Backend* backend = nullptr;
  const auto open_backend = [&]() -> Status {
    if (backend != nullptr) return {};
    if (options_.against_model) QUAROT_RETURN_IF_ERROR(open_reference(progress));
    QUAROT_ASSIGN_OR_RETURN(own, opener());
    backend = own ? own.get() : reference_.get();
    return {};
  };
  if (!options_.windows.empty()) {
    QUAROT_ASSIGN_OR_RETURN(
        measured.perplexity,
        answer(store, perplexity_key(recipe), parse_perplexity, [&]() -> Result<PerplexityResult> {
          QUAROT_RETURN_IF_ERROR(open_backend());
          return measure_perplexity(*backend, reference_.get(), options_.windows, progress);
        }));
  }
  if (measured.perplexity && measured.perplexity->nll.size() != options_.windows.size()) {
    return other_length("windows", measured.perplexity->nll.size(), options_.windows.size());
  }
  for (size_t i = 0; i < options_.tasks.size(); ++i) {
    QUAROT_ASSIGN_OR_RETURN(
        const TaskResult result,
        answer(store, task_key(recipe, i), parse_task_result, [&]() -> Result<TaskResult> {
          QUAROT_RETURN_IF_ERROR(open_backend());
          return measure_task(*backend, options_.tasks[i], progress);
        }));
    if (result.correct.size() != options_.tasks[i].items.size()) {
      return other_length("items", result.correct.size(), options_.tasks[i].items.size());
    }
    measured.tasks.push_back(result);
  }
  if (options_.also && backend != nullptr)
    QUAROT_RETURN_IF_ERROR(options_.also(*backend, progress));
  return measured;
}

Result<std::unique_ptr<Backend>> Evaluator::open(const Recipe& recipe, const Recipe* next,
                                                 Progress& progress) {
  if (!prepared_ || !same_weights(prepared_->recipe, recipe)) {
    prepared_.reset();
    QUAROT_ASSIGN_OR_RETURN(prepared_, prepare(*model_, recipe, progress));
  }
  const bool shared = next != nullptr && same_weights(prepared_->recipe, fitted(*next, config_));
  PreparedModel prepared;
  prepared.recipe = recipe;
  prepared.model = shared ? prepared_->model : std::move(prepared_->model);
  if (!shared) prepared_.reset();
  return backend_of(std::move(prepared));
}

// On the CPU integers give the same bits as simulated quantisers, faster.
Result<std::unique_ptr<Backend>> Evaluator::backend_of(PreparedModel prepared) const {
  return make_backend(
      std::move(prepared.model), prepared.recipe.precision,
      options_.device == Device::kCpu ? Execution::kAutomatic : Execution::kSimulated,
      options_.device);
}

Status Evaluator::open_reference(Progress& progress) {
  if (reference_) return {};
  QUAROT_ASSIGN_OR_RETURN(PreparedModel original, prepare(*model_, Recipe(), progress));
  QUAROT_ASSIGN_OR_RETURN(reference_, backend_of(std::move(original)));
  return {};
}

Result<PreparedModel> Evaluator::prepare(const OpenModel& model, const Recipe& recipe,
                                         Progress& progress) const {
  return prepare_model(*model.checkpoint, *model.tokenizer, recipe, options_.calibration, progress,
                       options_.device);
}

ResultKey Evaluator::key_of(const Recipe& recipe) const {
  ResultKey key;
  key.program = options_.program;
  key.model = options_.model_hash;
  key.recipe = recipe;
  if (recipe.calibrates()) key.calibration = calibration_hash_;
  key.device = options_.device == Device::kCpu ? "cpu" : "cuda";
  return key;
}

ResultKey Evaluator::perplexity_key(const Recipe& recipe) const {
  ResultKey key = key_of(recipe);
  key.measure = options_.against_model ? "perplexity, divergence from float" : "perplexity";
  key.protocol = options_.protocol;
  key.tokens = windows_hash_;
  return key;
}

ResultKey Evaluator::task_key(const Recipe& recipe, size_t task) const {
  ResultKey key = key_of(recipe);
  key.measure = "task " + options_.tasks[task].name;
  key.protocol = fmt::format("zero-shot, {} items", options_.tasks[task].items.size());
  key.tokens = task_hashes_[task];
  return key;
}

}  // namespace quarot
