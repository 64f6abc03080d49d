#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "eval/statistics.h"
#include "runtime/vector_math.h"

namespace quarot {

namespace {

constexpr int64_t kLogitRows = 128;  // rows of logits held at a time

struct TokenScore {
  double loss = 0;
  double kl = 0;
  bool agree = false;
};

int64_t argmax(std::span<const float> x) { return std::ranges::max_element(x) - x.begin(); }

// KL(p ‖ q), nats, of the softmax of two rows of logits, given their log_sum_exp().
double divergence(std::span<const float> p, float p_lse, std::span<const float> q, float q_lse) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = double{p[i]} - p_lse;  // in double, so that equal logits give exactly 0
    if (log_p < -40) continue;                  // below 1e-17: nothing in float32
    sum += double{std::exp(static_cast<float>(log_p))} * (log_p - (double{q[i]} - q_lse));
  }
  return sum;
}

// Runs all models over one window after another.
class WindowScorer {
 public:
  WindowScorer(std::span<Backend* const> models, Backend* reference)
      : models_(models), reference_(reference) {}

  // The scores of one window, a list for each model.
  std::vector<std::vector<TokenScore>> score(const EvalWindow& window) {
    if (reference_ != nullptr) run(*reference_, window);
    for (Backend* model : models_) {
      if (model != reference_) run(*model, window);
    }
    return reference_ == nullptr ? losses(window) : comparisons(window);
  }

 private:
  // The row that predicts the first scored token.
  static int64_t first_row(const EvalWindow& window) {
    return std::ssize(window.tokens) - 1 - window.scored;
  }

  std::vector<std::vector<TokenScore>> losses(const EvalWindow& window) {
    const int64_t first = first_row(window);
    const auto targets = std::span(window.tokens).subspan(static_cast<size_t>(first + 1));
    std::vector<std::vector<TokenScore>> scores;
    for (Backend* model : models_) {
      scores.emplace_back();
      for (const TokenLikelihood& token : model->likelihoods(first, targets)) {
        scores.back().push_back({.loss = -token.log});
      }
    }
    return scores;
  }

  std::vector<std::vector<TokenScore>> comparisons(const EvalWindow& window) {
    std::vector<std::vector<TokenScore>> scores(
        models_.size(), std::vector<TokenScore>(static_cast<size_t>(window.scored)));
    const int64_t first = first_row(window);
    for (int64_t done = 0; done < window.scored; done += kLogitRows) {
      const int64_t count = std::min(kLogitRows, window.scored - done);
      const std::span targets(window.tokens.data() + first + done + 1, static_cast<size_t>(count));
      read_logits(*reference_, first + done, count, reference_logits_);
      for (size_t m = 0; m < models_.size(); ++m) {
        if (models_[m] != reference_) read_logits(*models_[m], first + done, count, logits_);
        const Matrix& logits = models_[m] == reference_ ? reference_logits_ : logits_;
        parallel_for(count, 1, [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            scores[m][static_cast<size_t>(done + r)] =
                score_row(logits.row(r), r, targets[static_cast<size_t>(r)]);
          }
        });
      }
    }
    return scores;
  }

  static void run(Backend& backend, const EvalWindow& window) {
    const int sequence = backend.add_sequence();
    forward(backend,
            {window.tokens, {{sequence, 0, static_cast<int64_t>(window.tokens.size()), 0}}});
    backend.drop_sequence(sequence);
  }

  static void read_logits(Backend& backend, int64_t first, int64_t count, Matrix& out) {
    out.resize(count, backend.config().vocab);
    backend.logits(first, count, out);
  }

  TokenScore score_row(std::span<const float> row, int64_t r, Token target) const {
    const float lse = log_sum_exp(row);
    TokenScore score;
    score.loss = double{lse} - row[static_cast<size_t>(target)];
    const std::span<const float> truth = reference_logits_.row(r);
    score.kl = divergence(truth, log_sum_exp(truth), row, lse);
    score.agree = argmax(row) == argmax(truth);
    return score;
  }

  std::span<Backend* const> models_;
  Backend* reference_;
  Matrix logits_, reference_logits_;
};

// What the windows of one model add up to.
class Tally {
 public:
  void add(const std::vector<TokenScore>& scores) {
    double loss = 0;
    double kl = 0;
    for (const TokenScore& score : scores) {
      loss += score.loss;
      kl += score.kl;
      agree_ += score.agree ? 1 : 0;
    }
    const auto count = static_cast<double>(scores.size());
    nll_.push_back(loss / count);
    window_kl_.push_back(kl / count);
    loss_ += loss;
    kl_ += kl;
    tokens_ += static_cast<int64_t>(scores.size());
  }

  bool is_finite() const { return std::isfinite(loss_) && std::isfinite(kl_); }

  PerplexityResult result(bool against) const {
    const auto total = static_cast<double>(std::max<int64_t>(tokens_, 1));
    PerplexityResult result;
    result.nll = nll_;
    result.tokens = tokens_;
    result.perplexity = std::exp(loss_ / total);
    // d exp(x) = exp(x)·dx
    result.standard_error = result.perplexity * estimate(nll_).standard_error;
    if (against) {
      result.against = {kl_ / total, estimate(window_kl_).standard_error,
                        static_cast<double>(agree_) / total};
    }
    return result;
  }

 private:
  std::vector<double> nll_, window_kl_;
  double loss_ = 0;
  double kl_ = 0;
  int64_t agree_ = 0;
  int64_t tokens_ = 0;
};

Error not_finite() {
  return error(ErrorCode::kCorrupt,
               "the model's predictions are no finite numbers: is one of its weights damaged?");
}

// How many losses of a window the llama.cpp protocol counts.
int64_t second_half(int64_t window) { return std::max<int64_t>(window - 1 - window / 2, 1); }

Status check_options(const PerplexityOptions& options, std::optional<Token> bos) {
  if (options.window < 2) {
    return error(ErrorCode::kInvalidArgument, "a window of {} tokens, expected 2 or more",
                 options.window);
  }
  if (options.max_windows < 0) {
    return error(ErrorCode::kInvalidArgument,
                 "at most {} windows, expected 1 or more, or 0 for all", options.max_windows);
  }
  const bool strided = options.protocol == Protocol::kStrided;
  if (!strided && options.stride != 0) {
    return error(ErrorCode::kInvalidArgument, "a stride of {}, but this protocol has none",
                 options.stride);
  }
  if (strided && (options.stride < 1 || options.stride >= options.window)) {
    return error(ErrorCode::kInvalidArgument, "a stride of {}, expected 1 to {}", options.stride,
                 options.window - 1);
  }
  if ((options.bos_each_window || options.protocol == Protocol::kLlamaCpp) && !bos) {
    return error(ErrorCode::kInvalidArgument,
                 "this protocol puts BOS before each window, but the tokenizer has none");
  }
  return {};
}

}  // namespace

std::string describe(const PerplexityOptions& options) {
  const std::string bos = options.bos_each_window ? ", BOS before each" : "";
  switch (options.protocol) {
    case Protocol::kPaper:
      return fmt::format("paper: windows of {}, no overlap, {} losses each{}", options.window,
                         options.window - 1, bos);
    case Protocol::kStrided:
      return fmt::format("strided: windows of {}, {} new losses each{}", options.window,
                         options.stride, bos);
    case Protocol::kLlamaCpp:
      return fmt::format("llama.cpp: windows of {}, the last {} losses of each", options.window,
                         second_half(options.window));
  }
  return {};
}

Result<std::vector<EvalWindow>> cut_windows(std::span<const Token> text,
                                            const PerplexityOptions& options,
                                            std::optional<Token> bos) {
  QUAROT_RETURN_IF_ERROR(check_options(options, bos));
  if (text.size() < 2) {
    return error(ErrorCode::kInvalidArgument, "the text has {} tokens, expected 2 or more",
                 text.size());
  }
  const auto size = static_cast<int64_t>(text.size());
  const int64_t extra = options.bos_each_window ? 1 : 0;
  const int64_t body = std::min(options.window - extra, size);
  const int64_t advance =
      options.protocol == Protocol::kStrided ? std::min(options.stride, body) : body;
  std::vector<EvalWindow> windows;
  for (int64_t begin = 0; begin + body <= size; begin += advance) {
    if (options.max_windows > 0 && static_cast<int64_t>(windows.size()) == options.max_windows)
      break;
    EvalWindow window;
    if (extra != 0) window.tokens.push_back(*bos);
    const auto piece = text.subspan(static_cast<size_t>(begin), static_cast<size_t>(body));
    window.tokens.insert(window.tokens.end(), piece.begin(), piece.end());
    window.scored = static_cast<int64_t>(window.tokens.size()) - 1;
    if (options.protocol == Protocol::kStrided && begin > 0) window.scored = advance;
    if (options.protocol == Protocol::kLlamaCpp) {
      window.tokens[0] = *bos;
      window.scored = second_half(body);
    }
    windows.push_back(std::move(window));
  }
  return windows;
}

Result<std::vector<PerplexityResult>> measure_perplexities(std::span<Backend* const> models,
                                                           Backend* reference,
                                                           const std::vector<EvalWindow>& windows,
                                                           Progress& progress) {
  progress.stage("measuring perplexity", static_cast<int64_t>(windows.size()));
  WindowScorer scorer(models, reference);
  std::vector<Tally> tallies(models.size());
  for (const EvalWindow& window : windows) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    const auto rows = static_cast<int64_t>(window.tokens.size());
    for (const Backend* model : models) {
      QUAROT_RETURN_IF_ERROR(check_batch({window.tokens, {{0, 0, rows, 0}}}, model->config()));
    }
    const std::vector<std::vector<TokenScore>> scores = scorer.score(window);
    for (const Backend* model : models) QUAROT_RETURN_IF_ERROR(model->status());
    if (reference != nullptr) QUAROT_RETURN_IF_ERROR(reference->status());
    for (size_t m = 0; m < models.size(); ++m) {
      tallies[m].add(scores[m]);
      if (!tallies[m].is_finite()) return not_finite();
    }
    progress.advance(1);
  }
  std::vector<PerplexityResult> results;
  for (const Tally& tally : tallies) results.push_back(tally.result(reference != nullptr));
  return results;
}

Result<PerplexityResult> measure_perplexity(Backend& model, Backend* reference,
                                            const std::vector<EvalWindow>& windows,
                                            Progress& progress) {
  Backend* const models[] = {&model};
  QUAROT_ASSIGN_OR_RETURN(const std::vector<PerplexityResult> results,
                          measure_perplexities(models, reference, windows, progress));
  return results.front();
}

}  // namespace quarot
