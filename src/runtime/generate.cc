#include "runtime/generate.h"

#include <algorithm>
#include <chrono>

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

}  // namespace

Session::Session(Backend& backend, const Tokenizer& tokenizer)
    : backend_(&backend), tokenizer_(&tokenizer), sequence_(backend.add_sequence()) {}

Session::~Session() { backend_->drop_sequence(sequence_); }

Result<int64_t> Session::advance_to(const std::vector<Token>& text, int64_t chunk,
                                    Progress& progress) {
  const auto size = static_cast<int64_t>(text.size());
  // LongRoPE turns a whole sequence by one list of frequencies: at the length where these change,
  // what was cached under the others is of no use.
  const RopeConfig& rope = backend_->config().rope;
  if (&rope.frequencies(size) != &rope.frequencies(length_)) cached_.clear();
  length_ = size;
  const auto same = std::ranges::mismatch(cached_, text).in1 - cached_.begin();
  // The last token is always run: its logits are what comes next.
  const auto begin = std::min<int64_t>(same, size - 1);
  cached_.resize(static_cast<size_t>(begin));
  int64_t last_row = 0;
  for (int64_t done = begin; done < size; done += chunk) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    const int64_t count = std::min<int64_t>(chunk, size - done);
    const Batch batch{{text.begin() + done, text.begin() + done + count},
                      {{sequence_, 0, count, done, size}}};
    QUAROT_RETURN_IF_ERROR(check_batch(batch, backend_->config()));
    forward(*backend_, batch);
    cached_.insert(cached_.end(), batch.tokens.begin(), batch.tokens.end());
    last_row = count - 1;
  }
  return last_row;
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
  if (static_cast<int64_t>(prompt.size()) > context) {
    return error(ErrorCode::kInvalidArgument,
                 "the prompt has {} tokens, but the model's context holds {}", prompt.size(),
                 context);
  }
  Generation result;
  const auto start = std::chrono::steady_clock::now();
  const int64_t chunk = std::max<int64_t>(options.prefill_chunk, 1);
  QUAROT_ASSIGN_OR_RETURN(int64_t row, advance_to(prompt, chunk, progress));
  result.prefill_seconds = seconds_since(start);

  const auto decode_start = std::chrono::steady_clock::now();
  Sampler sampler(options.sampling);
  StreamDecoder decoder(*tokenizer_);
  StopFilter filter(options.stop);
  std::vector<Token> history = prompt;
  Matrix logits(1, backend_->config().vocab);
  const auto emit = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    on_text(text);
  };
  while (true) {
    if (static_cast<int64_t>(result.tokens.size()) >= options.max_tokens) break;
    backend_->logits(row, 1, logits);
    const Token token = sampler.sample(logits.row(0), history);
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
    QUAROT_ASSIGN_OR_RETURN(row, advance_to(history, chunk, progress));
  }
  if (!filter.stopped()) {
    emit(filter.push(decoder.finish()));
    emit(filter.finish());
  }
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

}  // namespace quarot
