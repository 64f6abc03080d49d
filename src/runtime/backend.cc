#include "runtime/backend.h"

#include "base/parallel.h"
#include "runtime/vector_math.h"

namespace quarot {

namespace {

constexpr int64_t kLogitRows = 128;  // held at a time

TokenLikelihood likelihood(std::span<const float> logits, Token target) {
  return {double{logits[static_cast<size_t>(target)]} - log_sum_exp(logits),
          std::ranges::max_element(logits) - logits.begin() == target};
}

}  // namespace

std::vector<TokenLikelihood> Backend::likelihoods(int64_t first, std::span<const Token> targets) {
  std::vector<TokenLikelihood> found(targets.size());
  Matrix rows;
  for (int64_t done = 0; done < std::ssize(targets); done += kLogitRows) {
    const int64_t count = std::min(kLogitRows, std::ssize(targets) - done);
    rows.resize(count, config().vocab);
    logits(first + done, count, rows);
    parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const auto i = static_cast<size_t>(done + r);
        found[i] = likelihood(rows.row(r), targets[i]);
      }
    });
  }
  return found;
}

}  // namespace quarot
