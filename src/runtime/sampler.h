// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "quarot/status.h"
#include "text/tokenizer.h"

namespace quarot {

// The options and their order of application follow common practice: repetition penalty (Keskar et
// al. 2019), temperature, top-k, top-p (Holtzman et al. 2020), min-p (Nguyen et al. 2024).
struct SamplingOptions {
  float temperature = 0;  // 0: greedy
  int64_t top_k = 0;      // keep the k likeliest; 0: all
  float top_p = 1;        // keep the likeliest that make up this share
  float min_p = 0;        // keep those at least this share of the likeliest
  float repeat_penalty =
      1;  // logits of tokens seen recently are divided (positive) or multiplied (negative) by it
  int64_t repeat_window = 64;  // how many last tokens count as seen
  uint64_t seed = 0;
};

Status check(const SamplingOptions& options);

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options)
      : options_(options), random_(options.seed, "sampling") {}

  // `history`: prompt and generation so far. Ties go to the lowest id.
  Token sample(std::span<const float> logits, std::span<const Token> history);

 private:
  SamplingOptions options_;
  Random random_;
  std::vector<float> logits_;
  std::vector<Token> candidates_;
};

}  // namespace quarot
