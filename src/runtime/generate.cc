#include "runtime/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"

namespace quarot {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Holds back text that may turn out to be the beginning of a stop string.
class StopFilter {
 public:
  explicit StopFilter(const std::vector<std::string>& stop) : stop_(&stop) {}

  // The text that is certain; `stopped` once a stop string is complete.
  std::string push(const std::string& text) {
    held_ += text;
    size_t begin = 0;
    size_t end = std::string::npos;  // of the stop string that is complete first
    for (const std::string& stop : *stop_) {
      const size_t at = stop.empty() ? std::string::npos : held_.find(stop);
      if (at == std::string::npos) continue;
      if (at + stop.size() < end || (at + stop.size() == end && at < begin)) {
        begin = at;
        end = at + stop.size();
      }
    }
    stopped_ = end != std::string::npos;
    if (stopped_) held_.resize(begin);
    return release(stopped_ ? 0 : longest_partial_stop());
  }
  std::string finish() { return release(0); }
  bool stopped() const { return stopped_; }

 private:
  size_t longest_partial_stop() const {
    size_t longest = 0;
    for (const std::string& stop : *stop_) {
      for (size_t n = std::min(stop.size(), held_.size()); n > longest; --n) {
        if (held_.ends_with(std::string_view(stop).substr(0, n))) longest = n;
      }
    }
    return longest;
  }
  std::string release(size_t keep) {
    std::string certain = held_.substr(0, held_.size() - keep);
    held_.erase(0, certain.size());
    return certain;
  }

  const std::vector<std::string>* stop_;
  std::string held_;
  bool stopped_ = false;
};

Status check_predictions(std::span<const float> logits) {
  if (std::ranges::all_of(logits, [](float x) { return std::isfinite(x); })) return {};
  return error(ErrorCode::kCorrupt,
               "the model's predictions are no finite numbers: is one of its weights damaged?");
}

}  // namespace

Session::Session(Backend& backend, const Tokenizer& tokenizer)
    : backend_(&backend), tokenizer_(&tokenizer), logits_(1, backend.config().vocab) {
  const std::lock_guard lock(backend_->turn);
  sequence_ = backend_->add_sequence();
}

Session::Session(const Session& other)
    : backend_(other.backend_),
      tokenizer_(other.tokenizer_),
      cached_(other.cached_),
      length_(other.length_),
      logits_(other.logits_) {
  const std::lock_guard lock(backend_->turn);
  sequence_ = backend_->fork_sequence(other.sequence_, std::ssize(cached_));
}

Session::~Session() {
  const std::lock_guard lock(backend_->turn);
  backend_->drop_sequence(sequence_);
}

int64_t Session::reusable(int64_t length) const {
  const RopeConfig& rope = backend_->config().rope;
  const bool same = &rope.frequencies(length) == &rope.frequencies(length_);
  return same ? static_cast<int64_t>(cached_.size()) : 0;
}

Status Session::check_length(int64_t length) const {
  const int64_t context = backend_->config().max_positions;
  if (length <= context) return {};
  return error(ErrorCode::kInvalidArgument, "{} tokens, but the model's context holds {}", length,
               context);
}

Status Session::run(std::span<const Step> steps, MatrixRef logits) {
  Batch batch;
  for (const Step& step : steps) {
    Session& session = *step.session;
    const auto held = static_cast<int64_t>(session.cached_.size());
    const auto more = static_cast<int64_t>(step.tokens.size());
    if (more == 0)
      return error(ErrorCode::kInvalidArgument, "a step without tokens; expected one or more");
    QUAROT_RETURN_IF_ERROR(session.check_length(held + more));
    const int64_t first_row = batch.rows();
    const int64_t position = session.reusable(held + more);
    batch.tokens.insert(batch.tokens.end(), session.cached_.begin() + position,
                        session.cached_.end());
    batch.tokens.insert(batch.tokens.end(), step.tokens.begin(), step.tokens.end());
    batch.chunks.push_back({session.sequence_, first_row, batch.rows() - first_row, position});
  }
  if (steps.empty()) return {};
  Backend& backend = *steps.front().session->backend_;
  QUAROT_RETURN_IF_ERROR(check_batch(batch, backend.config()));
  const std::lock_guard lock(backend.turn);
  forward(backend, batch);
  // Last rows that follow one another, as all do where each step is one token, go together.
  const auto last_row = [&](int64_t s) {
    const SequenceChunk& chunk = batch.chunks[static_cast<size_t>(s)];
    return chunk.first_row + chunk.count - 1;
  };
  const auto count = static_cast<int64_t>(steps.size());
  for (int64_t first = 0, end = 0; first < count; first = end) {
    for (end = first + 1; end < count && last_row(end) == last_row(end - 1) + 1;) ++end;
    backend.logits(last_row(first), end - first, logits.rows(first, end - first));
  }
  QUAROT_RETURN_IF_ERROR(backend.status());
  for (const Step& step : steps) {
    std::vector<Token>& cached = step.session->cached_;
    cached.insert(cached.end(), step.tokens.begin(), step.tokens.end());
    step.session->length_ = static_cast<int64_t>(cached.size());
  }
  return {};
}

Status Session::advance_to(const std::vector<Token>& text, int64_t chunk, Progress& progress) {
  const auto size = static_cast<int64_t>(text.size());
  cached_.resize(static_cast<size_t>(reusable(size)));
  length_ = size;
  const auto same = std::ranges::mismatch(cached_, text).in1 - cached_.begin();
  // The last token is always run: its logits are what comes next.
  const auto begin = std::min<int64_t>(same, size - 1);
  cached_.resize(static_cast<size_t>(begin));
  for (int64_t done = begin; done < size; done += chunk) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    const int64_t count = std::min<int64_t>(chunk, size - done);
    const Batch batch{{text.begin() + done, text.begin() + done + count},
                      {{sequence_, 0, count, done, size}}};
    QUAROT_RETURN_IF_ERROR(check_batch(batch, backend_->config()));
    const std::lock_guard lock(backend_->turn);
    forward(*backend_, batch);
    cached_.insert(cached_.end(), batch.tokens.begin(), batch.tokens.end());
    if (done + count == size) backend_->logits(count - 1, 1, logits_);
    QUAROT_RETURN_IF_ERROR(backend_->status());
  }
  return {};
}

Result<Generation> Session::generate(const std::vector<Token>& prompt,
                                     const GenerationOptions& options,
                                     FunctionRef<void(std::string_view)> on_text,
                                     Progress& progress) {
  QUAROT_RETURN_IF_ERROR(check(options.sampling));
  const int64_t context = backend_->config().max_positions;
  if (options.max_tokens < 0) {
    return error(ErrorCode::kInvalidArgument, "{} tokens to generate, expected 0 or more",
                 options.max_tokens);
  }
  if (prompt.empty())
    return error(ErrorCode::kInvalidArgument, "the prompt is empty; expected one token or more");
  const Status fits = check_length(static_cast<int64_t>(prompt.size()));
  if (!fits.ok()) return fits.error().with_context("the prompt");
  Generation result;
  const auto start = std::chrono::steady_clock::now();
  const int64_t chunk = std::max<int64_t>(options.prefill_chunk, 1);
  QUAROT_RETURN_IF_ERROR(advance_to(prompt, chunk, progress));
  result.prefill_seconds = seconds_since(start);

  const auto decode_start = std::chrono::steady_clock::now();
  Sampler sampler(options.sampling);
  StreamDecoder decoder(*tokenizer_);
  decoder.follow(prompt);
  StopFilter filter(options.stop);
  std::vector<Token> history = prompt;
  const auto emit = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    on_text(text);
  };
  while (true) {
    if (static_cast<int64_t>(result.tokens.size()) >= options.max_tokens) break;
    QUAROT_RETURN_IF_ERROR(check_predictions(logits_.row(0)));
    const Token token = sampler.sample(logits_.row(0), history);
    if (!options.ignore_end &&
        std::ranges::find(tokenizer_->end_tokens(), token) != tokenizer_->end_tokens().end()) {
      result.reason = StopReason::kEndToken;
      break;
    }
    result.tokens.push_back(token);
    history.push_back(token);
    emit(filter.push(decoder.push(token)));
    if (filter.stopped()) {
      result.reason = StopReason::kStopString;
      break;
    }
    if (static_cast<int64_t>(history.size()) >= context) {
      result.reason = StopReason::kContextFull;
      break;
    }
    if (static_cast<int64_t>(result.tokens.size()) == options.max_tokens) break;
    QUAROT_RETURN_IF_ERROR(advance_to(history, chunk, progress));
  }
  if (!filter.stopped()) {
    emit(filter.push(decoder.finish()));
    emit(filter.finish());
  }
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

}  // namespace quarot
