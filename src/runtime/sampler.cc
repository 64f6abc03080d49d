#include "quarot/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace quarot {

Status check(const SamplingOptions& o) {
  const auto bad = [](const char* name, double value, const char* expected) {
    return error(ErrorCode::kInvalidArgument, "{} is {}, expected {}", name, value, expected);
  };
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature))
    return bad("temperature", o.temperature, "0 or more");
  if (o.top_k < 0) return bad("top-k", static_cast<double>(o.top_k), "0 or more");
  if (!(o.top_p > 0 && o.top_p <= 1)) return bad("top-p", o.top_p, "above 0, at most 1");
  if (!(o.min_p >= 0 && o.min_p < 1)) return bad("min-p", o.min_p, "0 or more, below 1");
  if (!(o.repeat_penalty > 0) || !std::isfinite(o.repeat_penalty))
    return bad("repeat-penalty", o.repeat_penalty, "above 0");
  return {};
}

struct Sampler::State {
  explicit State(const SamplingOptions& o) : options(o), random(o.seed, "sampling") {}

  Token sample(std::span<const float> logits, std::span<const Token> history);

  SamplingOptions options;
  Random random;
  std::vector<float> scores;      // after penalties
  std::vector<Token> candidates;  // likeliest first
};

Sampler::Sampler(const SamplingOptions& options) : state_(std::make_unique<State>(options)) {}
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

Token Sampler::sample(std::span<const float> logits, std::span<const Token> history) {
  return state_->sample(logits, history);
}

Token Sampler::State::sample(std::span<const float> logits, std::span<const Token> history) {
  scores.assign(logits.begin(), logits.end());
  // NaN has no place in an order: never chosen.
  for (float& score : scores) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  }
  if (options.repeat_penalty != 1) {
    const auto recent = history.last(
        std::min(history.size(), static_cast<size_t>(std::max<int64_t>(options.repeat_window, 0))));
    for (const Token token : std::unordered_set<Token>(recent.begin(), recent.end())) {
      if (token < 0 || token >= std::ssize(scores)) continue;
      float& logit = scores[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / options.repeat_penalty : logit * options.repeat_penalty;
    }
  }
  if (options.temperature == 0) {
    return static_cast<Token>(std::ranges::max_element(scores) - scores.begin());
  }

  candidates.resize(scores.size());
  std::iota(candidates.begin(), candidates.end(), 0);
  const auto likelier = [&](Token a, Token b) {
    const float la = scores[static_cast<size_t>(a)];
    const float lb = scores[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  const size_t keep = options.top_k > 0
                          ? std::min(static_cast<size_t>(options.top_k), candidates.size())
                          : candidates.size();
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(keep),
                    candidates.end(), likelier);
  candidates.resize(keep);

  std::vector<double> weight(keep);
  double total = 0;
  for (size_t i = 0; i < keep; ++i) {
    const double shifted = double{scores[static_cast<size_t>(candidates[i])]} -
                           scores[static_cast<size_t>(candidates[0])];
    weight[i] = std::exp(shifted / options.temperature);
    total += weight[i];
  }
  size_t kept = 0;
  double mass = 0;
  while (kept < keep && (kept == 0 || (mass < options.top_p * total &&
                                       weight[kept] >= options.min_p * weight[0]))) {
    mass += weight[kept++];
  }
  double target = random.uniform() * mass;
  for (size_t i = 0; i < kept; ++i) {
    target -= weight[i];
    if (target < 0) return candidates[i];
  }
  return candidates[kept - 1];
}

}  // namespace quarot
