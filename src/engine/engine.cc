#include "quarot/engine.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "engine/open_runnable.h"
#include "runtime/generate.h"
#include "text/chat_template.h"

namespace quarot {

namespace {

// Hands progress on to the caller's function.
class ReportedProgress final : public Progress {
 public:
  using Function = std::function<bool(std::string_view, double)>;
  explicit ReportedProgress(const Function& on_progress) : on_progress_(on_progress) {}

  void stage(std::string_view name, int64_t total) override {
    name_ = name;
    total_ = total;
    done_ = 0;
    report();
  }
  void advance(int64_t steps) override {
    done_ += steps;
    report();
  }
  bool cancelled() const override { return cancelled_; }

 private:
  void report() {
    const double share = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 0;
    if (on_progress_ && !on_progress_(name_, share)) cancelled_ = true;
  }

  const Function& on_progress_;
  std::string name_;
  int64_t total_ = 0;
  int64_t done_ = 0;
  bool cancelled_ = false;
};

// Cancelled once told so.
class Cancellation final : public Progress {
 public:
  void cancel() { cancelled_ = true; }
  void stage(std::string_view, int64_t) override {}
  void advance(int64_t) override {}
  bool cancelled() const override { return cancelled_; }

 private:
  bool cancelled_ = false;
};

}  // namespace

struct Engine::State {
  std::shared_ptr<RunnableModel> model = std::make_shared<RunnableModel>();
  ModelInfo info;
};

struct Sequence::State {
  explicit State(std::shared_ptr<RunnableModel> running)
      : model(std::move(running)), session(*model->backend, *model->tokenizer) {}

  std::shared_ptr<RunnableModel> model;
  Session session;
};

Sequence::Sequence(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;
Sequence::~Sequence() = default;

Sequence Sequence::fork() const { return Sequence(std::make_unique<State>(*state_)); }

const std::vector<Token>& Sequence::tokens() const { return state_->session.tokens(); }

Engine::Engine(std::shared_ptr<State> state) : state_(std::move(state)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Result<Engine> Engine::open(const std::filesystem::path& model, const EngineOptions& options) {
  Recipe recipe;
  if (!options.recipe.empty()) {
    QUAROT_ASSIGN_OR_RETURN(recipe, find_recipe(options.recipe));
  }
  QUAROT_ASSIGN_OR_RETURN(OpenModel open, open_model(model));
  std::optional<std::filesystem::path> calibration;
  if (!options.calibration.empty()) calibration = options.calibration;
  ReportedProgress progress(options.on_progress);
  auto state = std::make_shared<State>();
  QUAROT_ASSIGN_OR_RETURN(*state->model, make_runnable(std::move(open), recipe, options.execution,
                                                       options.device, calibration, progress));
  const ModelConfig& config = state->model->backend->config();
  state->info = {config.family,
                 state->model->recipe.name,
                 bits_label(state->model->recipe),
                 config.layers,
                 config.hidden,
                 config.vocab,
                 config.max_positions};
  return Engine(std::move(state));
}

const ModelInfo& Engine::model() const { return state_->info; }

std::vector<Token> Engine::tokenize(std::string_view text) const {
  const Tokenizer& tokenizer = *state_->model->tokenizer;
  std::vector<Token> tokens = tokenizer.encode(text);
  const std::optional<Token> bos = tokenizer.bos();
  if (bos && (tokenizer.adds_bos() || tokens.empty())) tokens.insert(tokens.begin(), *bos);
  return tokens;
}

std::string Engine::detokenize(std::span<const Token> tokens) const {
  return state_->model->tokenizer->decode(tokens, true);
}

bool Engine::ends(Token token) const {
  const std::vector<Token>& end_tokens = state_->model->tokenizer->end_tokens();
  return std::ranges::find(end_tokens, token) != end_tokens.end();
}

Result<std::vector<Token>> Engine::tokenize_chat(const std::vector<ChatMessage>& messages) const {
  const Tokenizer& tokenizer = *state_->model->tokenizer;
  QUAROT_ASSIGN_OR_RETURN(const std::string prompt, render_chat(tokenizer, messages));
  return tokenizer.encode(prompt);  // the template writes BOS itself
}

Sequence Engine::new_sequence() {
  return Sequence(std::make_unique<Sequence::State>(state_->model));
}

Result<std::vector<float>> Engine::run(std::span<const Step> steps) {
  std::set<const Sequence*> seen;
  std::vector<Session::Step> sessions;
  for (const Step& step : steps) {
    if (step.sequence->state_->model != state_->model) {
      return error(ErrorCode::kInvalidArgument, "a step's sequence belongs to another engine");
    }
    if (!seen.insert(step.sequence).second) {
      return error(ErrorCode::kInvalidArgument,
                   "a sequence comes twice in one batch: put its tokens into one step");
    }
    sessions.push_back({&step.sequence->state_->session, step.tokens});
  }
  const auto count = static_cast<int64_t>(steps.size());
  std::vector<float> logits(static_cast<size_t>(count * state_->info.vocab));
  QUAROT_RETURN_IF_ERROR(
      Session::run(sessions, MatrixRef(logits.data(), count, state_->info.vocab)));
  return logits;
}

Result<Generation> Engine::generate(Sequence& sequence, std::span<const Token> prompt,
                                    const GenerationOptions& options,
                                    const std::function<bool(std::string_view)>& on_text) {
  if (sequence.state_->model != state_->model) {
    return error(ErrorCode::kInvalidArgument, "the sequence belongs to another engine");
  }
  Cancellation cancellation;
  const auto hand_on = [&](std::string_view text) {
    if (on_text && !cancellation.cancelled() && !on_text(text)) cancellation.cancel();
  };
  Result<Generation> said = sequence.state_->session.generate({prompt.begin(), prompt.end()},
                                                              options, hand_on, cancellation);
  if (said.ok()) QUAROT_RETURN_IF_ERROR(cancellation.check());  // of the last text
  return said;
}

int64_t Engine::cache_bytes() const {
  Backend& backend = *state_->model->backend;
  const std::lock_guard lock(backend.turn);
  return backend.cache_bytes();
}

}  // namespace quarot
