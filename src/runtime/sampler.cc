#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "base/error.h"

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

Token Sampler::sample(std::span<const float> logits, std::span<const Token> history) {
  logits_.assign(logits.begin(), logits.end());
  if (options_.repeat_penalty != 1) {
    const auto recent = history.last(std::min(
        history.size(), static_cast<size_t>(std::max<int64_t>(options_.repeat_window, 0))));
    for (const Token token : std::unordered_set<Token>(recent.begin(), recent.end())) {
      float& logit = logits_[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
    }
  }
  if (options_.temperature == 0) {
    return static_cast<Token>(std::ranges::max_element(logits_) - logits_.begin());
  }

  candidates_.resize(logits_.size());
  std::iota(candidates_.begin(), candidates_.end(), 0);
  const auto likelier = [&](Token a, Token b) {
    const float la = logits_[static_cast<size_t>(a)];
    const float lb = logits_[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  const size_t keep = options_.top_k > 0
                          ? std::min(static_cast<size_t>(options_.top_k), candidates_.size())
                          : candidates_.size();
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(keep),
                    candidates_.end(), likelier);
  candidates_.resize(keep);

  std::vector<double> weight(keep);
  double total = 0;
  for (size_t i = 0; i < keep; ++i) {
    const double shifted = double{logits_[static_cast<size_t>(candidates_[i])]} -
                           logits_[static_cast<size_t>(candidates_[0])];
    weight[i] = std::exp(shifted / options_.temperature);
    total += weight[i];
  }
  size_t kept = 0;
  double mass = 0;
  while (kept < keep && (kept == 0 || (mass < options_.top_p * total &&
                                       weight[kept] >= options_.min_p * weight[0]))) {
    mass += weight[kept++];
  }
  double target = random_.uniform() * mass;
  for (size_t i = 0; i < kept; ++i) {
    target -= weight[i];
    if (target < 0) return candidates_[i];
  }
  return candidates_[kept - 1];
}

}  // namespace quarot
