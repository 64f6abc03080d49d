#include "eval/tasks.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::PieceTokenizer;
using testing::value_of;
using Scores = std::vector<std::vector<ContinuationScore>>;

ModelConfig config_of(const nlohmann::json& changes = nlohmann::json::object()) {
  return value_of(parse_config(testing::config_json(changes), "test"));
}

// Pieces 0 … 7; the longest is taken.
PieceTokenizer tokenizer_of(std::optional<Token> bos = std::nullopt) {
  return PieceTokenizer({"a", "b", " ", " b", "ab", "\n", "\u00a0", "<s>"}, {7}, bos);
}

EvalWindow encoded(const std::string& context, const std::string& continuation,
                   const PieceTokenizer& tokenizer, const ModelConfig& config = config_of()) {
  const Task task =
      value_of(make_task("t.jsonl", {{{{context, continuation}}, {}, {}, 1}}, tokenizer, config));
  return task.items[0][0];
}

TEST(Tokenisation, ContinuationIsWhatTheWholeHasBeyondTheContext) {
  const EvalWindow window = encoded("ab", " b", tokenizer_of());
  EXPECT_EQ(window.tokens, (std::vector<Token>{4, 3}));
  EXPECT_EQ(window.scored, 1);
}

TEST(Tokenisation, TrailingWhiteSpaceBelongsToTheContinuation) {
  const EvalWindow window = encoded("a\u00a0\n ", "b", tokenizer_of());
  EXPECT_EQ(window.tokens, (std::vector<Token>{0, 6, 5, 3}));
  EXPECT_EQ(window.scored, 3);
}

// "a" + "b" is one piece: the harness keeps the context's own token and finds none beyond it.
TEST(Tokenisation, RefusesAContinuationThatAddsNoToken) {
  const auto task =
      make_task("dir/t.jsonl", {{{{"a", "b"}}, {}, {}, 9}}, tokenizer_of(), config_of());
  ASSERT_FALSE(task.ok());
  EXPECT_EQ(task.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(
      task.error().message().starts_with("dir/t.jsonl:9: the continuation \"b\" adds 0 tokens"))
      << task.error().message();
}

TEST(Tokenisation, ContextBeginsWithBos) {
  EXPECT_EQ(encoded("a", " b", tokenizer_of(Token{7})).tokens, (std::vector<Token>{7, 0, 3}));
  EXPECT_EQ(encoded("", "a", tokenizer_of(Token{7})).tokens, (std::vector<Token>{7, 0}));
  EXPECT_EQ(encoded("", "a", tokenizer_of()).tokens, (std::vector<Token>{7, 0}));  // the end token
  EXPECT_EQ(encoded("", "a", tokenizer_of()).scored, 1);
}

TEST(Tokenisation, WhatIsTooLongLosesItsBeginning) {
  const ModelConfig config = config_of({{"max_position_embeddings", 3}});
  const EvalWindow window = encoded("aabb", " ba", tokenizer_of(), config);
  EXPECT_EQ(window.tokens, (std::vector<Token>{4, 1, 3, 0}));  // the last one needs no position
  EXPECT_EQ(window.scored, 2);
  const auto task =
      make_task("t.jsonl", {{{{"a", " b b b b"}}, {}, {}, 1}}, tokenizer_of(), config);
  EXPECT_NE(task.error().message().find("adds 4 tokens, expected 1 to the model's 3"),
            std::string::npos);
}

struct Fixture {
  explicit Fixture(const nlohmann::json& changes = nlohmann::json::object())
      : model(testing::random_model(testing::config_json(changes), 3)) {}

  // An item whose continuations share `shared` tokens of context.
  static std::vector<EvalWindow> item(int64_t context, int64_t shared, int64_t continuations,
                                      uint64_t seed) {
    std::vector<EvalWindow> windows;
    const std::vector<Token> common = testing::random_tokens(context, 96, seed);
    for (int64_t i = 0; i < continuations; ++i) {
      const std::vector<Token> own = testing::random_tokens(context + 1 + i, 96, seed + 1 + i);
      EvalWindow window{own, i + 1};
      std::copy_n(common.begin(), shared, window.tokens.begin());
      windows.push_back(window);
    }
    return windows;
  }

  Scores score(const std::vector<std::vector<EvalWindow>>& items, int a_bits = kFloatBits) const {
    Precision precision;
    precision.activations.bits = a_bits;
    precision.keys.bits = precision.values.bits = a_bits == kFloatBits ? kFloatBits : 4;
    SimulatedBackend backend(model, precision);
    NoProgress progress;
    Scores scores = value_of(score_items(backend, items, progress));
    EXPECT_EQ(backend.add_sequence(), 0);  // none is left
    return scores;
  }

  Model model;
};

// Against log softmax in double precision over the logits of each text alone.
TEST(ScoreItems, AreSummedLogLikelihoods) {
  const Fixture f;
  const auto item = Fixture::item(9, 9, 4, 11);
  const Scores scores = f.score({item});
  for (size_t i = 0; i < item.size(); ++i) {
    const EvalWindow& window = item[i];
    const Matrix logits = testing::logits_of(f.model, window.tokens);
    double expected = 0;
    bool greedy = true;
    for (int64_t t = std::ssize(window.tokens) - window.scored; t < std::ssize(window.tokens);
         ++t) {
      double sum = 0;
      for (const float x : logits.row(t - 1)) sum += std::exp(double{x});
      const Token target = window.tokens[static_cast<size_t>(t)];
      expected += logits(t - 1, target) - std::log(sum);
      greedy = greedy && std::ranges::max(logits.row(t - 1)) == logits(t - 1, target);
    }
    EXPECT_NEAR(scores[0][i].log_likelihood, expected, 1e-5 * std::abs(expected));
    EXPECT_EQ(scores[0][i].greedy, greedy);
  }
}

TEST(ScoreItems, KnowsWhatGreedyDecodingGives) {
  const Fixture f;
  std::vector<Token> tokens = testing::random_tokens(5, 96, 4);
  for (int i = 0; i < 3; ++i) {
    const Matrix logits = testing::logits_of(f.model, tokens);
    const auto row = logits.row(logits.rows() - 1);
    tokens.push_back(static_cast<Token>(std::ranges::max_element(row) - row.begin()));
  }
  EvalWindow other{tokens, 3};
  other.tokens[6] = (other.tokens[6] + 1) % 96;
  const Scores scores = f.score({{{tokens, 3}}, {other}});
  EXPECT_TRUE(scores[0][0].greedy);
  EXPECT_FALSE(scores[1][0].greedy);
}

// Bit for bit, quantised or not: what is shared, and what else is in the batch, changes nothing.
RC_GTEST_PROP(ScoreItems, DependNeitherOnSharingNorOnBatching, ()) {
  static const Fixture f;
  std::vector<std::vector<EvalWindow>> items;
  const auto count = *rc::gen::inRange(1, 6);
  for (int i = 0; i < count; ++i) {
    const auto context = *rc::gen::inRange<int64_t>(1, 80);
    items.push_back(Fixture::item(context, *rc::gen::inRange<int64_t>(0, context + 1),
                                  *rc::gen::inRange<int64_t>(1, 4), *rc::gen::inRange(0, 1000)));
  }
  const int bits = *rc::gen::element(4, 8, kFloatBits);
  const Scores together = f.score(items, bits);
  for (size_t i = 0; i < items.size(); ++i) {
    for (size_t c = 0; c < items[i].size(); ++c) {
      RC_ASSERT(f.score({{items[i][c]}}, bits)[0][0] == together[i][c]);
    }
  }
}

// Nor where pages that the continuations share are quantised by them, late.
TEST(ScoreItems, DoNotDependOnSharingWherePagesAreQuantised) {
  const Fixture f;
  const auto item = Fixture::item(100, 64, 3, 21);
  Precision precision;
  precision.keys = precision.values = {.bits = 3, .clip = 0.9F};
  for (const int64_t recent : {0, 32}) {
    precision.pages = {.keys_by_channel = true, .recent = recent, .outliers = 0.01};
    const auto score = [&](const std::vector<std::vector<EvalWindow>>& items) {
      SimulatedBackend backend(f.model, precision);
      NoProgress progress;
      return value_of(score_items(backend, items, progress));
    };
    const Scores together = score({item});
    for (size_t i = 0; i < item.size(); ++i)
      EXPECT_EQ(score({{item[i]}})[0][0], together[0][i]) << recent << " " << i;
  }
}

TEST(ScoreItems, RefusesForeignTokensAndCanBeInterrupted) {
  const Fixture f;
  SimulatedBackend backend(f.model, {});
  NoProgress progress;
  const auto foreign = score_items(backend, {{{{1, 96}, 1}}}, progress);
  ASSERT_FALSE(foreign.ok());
  EXPECT_NE(foreign.error().message().find("token 96"), std::string::npos);
  class Stop final : public Progress {
    void stage(std::string_view, int64_t) override {}
    void advance(int64_t) override {}
    bool cancelled() const override { return true; }
  } stop;
  EXPECT_EQ(score_items(backend, {{{{1, 2}, 1}}}, stop).error().code(), ErrorCode::kCancelled);
}

TaskItem choices(const std::vector<double>& norm, size_t gold) {
  return {std::vector<TaskItem::Pair>(norm.size()), norm, gold, 1};
}

// By likelihood 1, 0, 0 (a tie goes to the first); by likelihood a character −2 / −1.5 → 1,
// −1 / −4 → 0, −1 / −0.5 → 1.
TEST(Summarize, ChoicesByHand) {
  const std::vector<TaskItem> items = {choices({2, 2}, 1), choices({1, 1}, 1), choices({3, 6}, 1)};
  const Scores scores = {
      {{-4, false}, {-3, true}}, {{-1, false}, {-4, false}}, {{-3, false}, {-3, false}}};
  const TaskResult result = summarize(items, scores);
  EXPECT_EQ(result.correct, (std::vector<double>{1, 0, 0}));
  EXPECT_DOUBLE_EQ(result.acc, 1.0 / 3);
  EXPECT_DOUBLE_EQ(*result.acc_norm, 2.0 / 3);
  EXPECT_DOUBLE_EQ(result.standard_error, 1.0 / 3);  // √(1/3)/√3
  EXPECT_FALSE(result.ppl.has_value());
}

TEST(Summarize, WordsByHand) {
  const std::vector<TaskItem> items(4, TaskItem{{{"a", " b"}}, {}, {}, 1});
  const TaskResult result =
      summarize(items, {{{-1, true}}, {{-2, false}}, {{-4, true}}, {{-5, true}}});
  EXPECT_DOUBLE_EQ(result.acc, 0.75);
  EXPECT_DOUBLE_EQ(*result.ppl, std::exp(3.0));
  EXPECT_DOUBLE_EQ(result.standard_error, 0.25);  // √(0.75/3)/√4
  EXPECT_FALSE(result.acc_norm.has_value());
}

}  // namespace
}  // namespace quarot
