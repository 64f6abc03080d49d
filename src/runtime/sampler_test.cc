// What is drawn, against probabilities worked out by hand.
#include "quarot/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quarot {
namespace {

// exp of these are in the ratio 8 : 4 : 2 : 1 : 1, in the order of ids 3, 1, 0, 2, 4.
const float kLn2 = std::log(2.0F);
const std::vector<float> kLogits = {kLn2, 2 * kLn2, 0, 3 * kLn2, 0};

std::vector<double> frequencies(const SamplingOptions& options, const std::vector<float>& logits,
                                const std::vector<Token>& history = {}) {
  EXPECT_TRUE(check(options).ok());
  constexpr int kDraws = 40000;
  Sampler sampler(options);
  std::vector<double> share(logits.size(), 0.0);
  for (int i = 0; i < kDraws; ++i)
    share[static_cast<size_t>(sampler.sample(logits, history))] += 1.0 / kDraws;
  return share;
}

// Five standard deviations of the share of 40,000 draws; what has probability 0 is never drawn.
void expect_distribution(const std::vector<double>& share, const std::vector<double>& weights) {
  double total = 0;
  for (const double weight : weights) total += weight;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double p = weights[i] / total;
    EXPECT_NEAR(share[i], p, 5 * std::sqrt(p * (1 - p) / 40000) + 1e-9) << "token " << i;
  }
}

SamplingOptions at_temperature(float temperature) {
  SamplingOptions options;
  options.temperature = temperature;
  options.seed = 11;
  return options;
}

TEST(Sampler, GreedyTakesTheLikeliestAndTheLowestIdOfATie) {
  Sampler sampler({});
  EXPECT_EQ(sampler.sample(kLogits, {}), 3);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 7, 7, 2}, {}), 1);
}

TEST(Sampler, TemperatureScalesTheLogits) {
  expect_distribution(frequencies(at_temperature(1), kLogits), {2, 4, 1, 8, 1});
  expect_distribution(frequencies(at_temperature(0.5), kLogits), {4, 16, 1, 64, 1});
  expect_distribution(frequencies(at_temperature(1e-30F), kLogits), {0, 0, 0, 1, 0});
}

TEST(Sampler, TopKKeepsTheLikeliestTiesByLowestId) {
  SamplingOptions options = at_temperature(1);
  options.top_k = 2;
  expect_distribution(frequencies(options, kLogits), {0, 4, 0, 8, 0});
  options.top_k = 4;
  expect_distribution(frequencies(options, kLogits), {2, 4, 1, 8, 0});
  options.top_k = 99;
  expect_distribution(frequencies(options, kLogits), {2, 4, 1, 8, 1});
}

TEST(Sampler, TopPKeepsTheFewestThatReachTheShare) {
  SamplingOptions options = at_temperature(1);
  options.top_p = 0.49F;  // 8/16 reaches it alone
  expect_distribution(frequencies(options, kLogits), {0, 0, 0, 1, 0});
  options.top_p = 0.51F;
  expect_distribution(frequencies(options, kLogits), {0, 4, 0, 8, 0});
  options.top_p = 0.8F;
  expect_distribution(frequencies(options, kLogits), {2, 4, 0, 8, 0});
  options.top_k = 2;  // the share is of what top-k left: 8 of 12
  options.top_p = 0.6F;
  expect_distribution(frequencies(options, kLogits), {0, 0, 0, 1, 0});
}

TEST(Sampler, MinPKeepsThoseNearTheLikeliest) {
  SamplingOptions options = at_temperature(1);
  options.min_p = 0.2F;  // of 8: 1.6
  expect_distribution(frequencies(options, kLogits), {2, 4, 0, 8, 0});
  options.min_p = 0.9F;
  expect_distribution(frequencies(options, kLogits), {0, 0, 0, 1, 0});
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  SamplingOptions options = at_temperature(1);
  options.repeat_penalty = 2;
  const std::vector<float> logits = {2 * kLn2, 2 * kLn2, -kLn2, -kLn2};
  // Seen 0 (twice: no more than once) and 2.
  expect_distribution(frequencies(options, logits, {0, 2, 0}), {2, 4, 0.25, 0.5});
  // Only the last tokens count.
  options.repeat_window = 1;
  expect_distribution(frequencies(options, logits, {2, 0}), {2, 4, 0.5, 0.5});
  options.repeat_window = 0;
  expect_distribution(frequencies(options, logits, {2, 0}), {4, 4, 0.5, 0.5});
  options.temperature = 0;
  options.repeat_window = 64;
  Sampler greedy(options);
  EXPECT_EQ(greedy.sample(logits, std::vector<Token>{0}), 1);
}

// No order has a place for NaN: sorting by one may read beyond the end.
TEST(Sampler, WhatIsNoNumberIsNeverChosen) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> logits(1000, nan);
  logits[700] = kLn2;
  logits[900] = 0;
  std::vector<double> weights(1000, 0.0);
  weights[700] = 2;
  weights[900] = 1;
  SamplingOptions options = at_temperature(1);
  options.repeat_penalty = 1.1F;
  expect_distribution(frequencies(options, logits, {-1, 1000}), weights);
  options.temperature = 0;
  EXPECT_EQ(Sampler(options).sample(logits, {}), 700);
}

TEST(Sampler, SameSeedSameTokens) {
  const auto draw = [](uint64_t seed) {
    SamplingOptions options = at_temperature(1);
    options.seed = seed;
    Sampler sampler(options);
    std::vector<Token> tokens;
    for (int i = 0; i < 50; ++i) tokens.push_back(sampler.sample(kLogits, {}));
    return tokens;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Sampler, RefusesOptionsThatMakeNoSense) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto refused = [](auto member, auto value, const char* name) {
    SamplingOptions options;
    options.*member = value;
    const Status status = check(options);
    ASSERT_FALSE(status.ok()) << name << " " << value;
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(status.error().message().starts_with(name)) << status.error().message();
    EXPECT_NE(status.error().message().find("expected"), std::string::npos);
  };
  for (const float value : {-1.0F, nan, HUGE_VALF})
    refused(&SamplingOptions::temperature, value, "temperature");
  refused(&SamplingOptions::top_k, int64_t{-1}, "top-k");
  for (const float value : {0.0F, -1.0F, 1.1F, nan})
    refused(&SamplingOptions::top_p, value, "top-p");
  for (const float value : {-0.1F, 1.0F, nan}) refused(&SamplingOptions::min_p, value, "min-p");
  for (const float value : {0.0F, -1.0F, nan, HUGE_VALF})
    refused(&SamplingOptions::repeat_penalty, value, "repeat-penalty");
}

}  // namespace
}  // namespace quarot
