// Prompt processing and generation, timed.
#pragma once

#include <string>
#include <vector>

#include "base/progress.h"
#include "base/random.h"
#include "runtime/backend.h"

namespace quarot::cli {

// Named as the tools people know name them: pp512 (a prompt of 512 tokens at once), tg64 (64 tokens
// one after the other), tg32@6000 (with 6000 tokens in the cache before).
struct SpeedTest {
  std::string name;
  bool generates = false;
  int64_t tokens = 0;
  int64_t depth = 0;
};

// kInvalidArgument for what is no such name.
Result<SpeedTest> parse_speed_test(const std::string& name);

// kInvalidArgument for more tokens than a model's context holds.
Status check(const SpeedTest& test, int64_t context);

// Runs tests on one sequence of random tokens. A test writes over what stands at its positions:
// what is deeper stays in the cache for deeper tests.
class SpeedMeter {
 public:
  explicit SpeedMeter(const ModelConfig& config) : vocab_(config.vocab), logits_(1, config.vocab) {}

  // Tokens a second. The first run at a depth fills the cache, untimed; progress is by tokens.
  Result<double> run(Backend& backend, const SpeedTest& test, Progress& progress);

 private:
  Status fill(Backend& backend, int64_t depth, Progress& progress);
  void step(Backend& backend, int64_t position, int64_t count);

  int64_t vocab_;
  Matrix logits_;
  Random random_{0};
  int sequence_ = -1;
  int64_t filled_ = 0;
};

double median(std::vector<double> values);  // of one or more

}  // namespace quarot::cli
