// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "quarot/status.h"
#include "quarot/text.h"

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

// kInvalidArgument, naming the option that is out of range.
Status check(const SamplingOptions& options);

// One stream of random numbers: one sampler a sequence. The options must have passed check().
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  ~Sampler();

  // `history`: prompt and generation so far. Ties go to the lowest id.
  Token sample(std::span<const float> logits, std::span<const Token> history);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quarot
