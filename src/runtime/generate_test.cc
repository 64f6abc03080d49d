// Sessions on a scripted backend, which says the tokens that the test wrote down, and on a small
// model, where a conversation must not depend on how it came about.
#include "runtime/generate.h"

#include <gtest/gtest.h>

#include <deque>

#include "runtime/simulated_backend.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::PieceTokenizer;
using testing::value_of;

// After position p of the sequence comes script[p + 1]; counts what it is made to compute.
class ScriptedBackend final : public Backend {
 public:
  static constexpr Token kNoNumber = -1;  // in a script: NaN among the logits

  ScriptedBackend(std::vector<Token> script, int64_t vocab, int64_t context)
      : script_(std::move(script)) {
    config_.layers = 0;
    config_.vocab = vocab;
    config_.max_positions = context;
  }
  const ModelConfig& config() const override { return config_; }
  int add_sequence() override { return 0; }
  int fork_sequence(int, int64_t) override { return 0; }
  void drop_sequence(int) override {}
  int64_t cache_bytes() const override { return 0; }
  void embed(const Batch& batch) override {
    computed += batch.rows();
    position_ = batch.chunks[0].position;
  }
  void normalize(int64_t, Space) override {}
  void project_qkv(int64_t) override {}
  void append_cache(int64_t) override {}
  void attend(int64_t) override {}
  void mix_heads(int64_t) override {}
  void project_output(int64_t) override {}
  void project_gate_up(int64_t) override {}
  void gate(int64_t) override {}
  void project_down(int64_t) override {}
  void logits(int64_t first, int64_t, MatrixRef out) override {
    std::ranges::fill(out.row(0), 0.0F);
    const Token next = script_.at(static_cast<size_t>(position_ + first + 1));
    if (next == kNoNumber) {
      out(0, 0) = std::numeric_limits<float>::quiet_NaN();
    } else {
      out(0, next) = 1;
    }
  }

  int64_t computed = 0;  // rows

 private:
  std::vector<Token> script_;
  ModelConfig config_;
  int64_t position_ = 0;
};

struct Said {
  Generation generation;
  std::vector<std::string> pieces;
};

// Prompt of one token; the model then says `tokens`.
Said say(const PieceTokenizer& tokenizer, std::vector<Token> tokens, GenerationOptions options) {
  tokens.insert(tokens.begin(), 0);
  const auto size = static_cast<int64_t>(tokens.size());
  options.max_tokens = std::min(options.max_tokens, size - 1);
  ScriptedBackend backend(tokens, tokenizer.vocab_size(), 1000);
  Session session(backend, tokenizer);
  NoProgress progress;
  Said said;
  said.generation = value_of(session.generate(
      {0}, options, [&](std::string_view text) { said.pieces.emplace_back(text); }, progress));
  std::string streamed;
  for (const std::string& piece : said.pieces) streamed += piece;
  EXPECT_EQ(streamed, said.generation.text);
  return said;
}

const PieceTokenizer& letters() {
  static const PieceTokenizer tokenizer({"a", "b", "c", "d", "ab", "cd", "bc"}, {3});
  return tokenizer;
}

GenerationOptions stopping_at(std::vector<std::string> stop) {
  GenerationOptions options;
  options.stop = std::move(stop);
  options.ignore_end = true;
  return options;
}

TEST(Session, SaysTokensUntilTheMaximum) {
  GenerationOptions options;
  options.max_tokens = 3;
  const Said said = say(letters(), {0, 1, 2, 0, 0}, options);
  EXPECT_EQ(said.generation.text, "abc");
  EXPECT_EQ(said.generation.tokens, (std::vector<Token>{0, 1, 2}));
  EXPECT_EQ(said.generation.reason, StopReason::kMaxTokens);
}

TEST(Session, EndTokenEndsUnlessIgnored) {
  GenerationOptions options;
  const Said ended = say(letters(), {0, 3, 1, 1}, options);
  EXPECT_EQ(ended.generation.text, "a");
  EXPECT_EQ(ended.generation.reason, StopReason::kEndToken);
  options.ignore_end = true;
  EXPECT_EQ(say(letters(), {0, 3, 1, 1}, options).generation.text, "adbb");
}

TEST(Session, StopStringIsFoundAcrossTokens) {
  for (const std::vector<Token>& tokens :
       {std::vector<Token>{0, 0, 1, 2, 3, 0}, {0, 4, 5, 0}, {0, 0, 6, 3, 0}}) {  // "aabcd…"
    const Said said = say(letters(), tokens, stopping_at({"bcd"}));
    EXPECT_EQ(said.generation.text, "aa");
    EXPECT_EQ(said.generation.reason, StopReason::kStopString);
  }
}

TEST(Session, WhatOnlyBeganAStopStringIsSaidLater) {
  const Said said = say(letters(), {0, 1, 2, 1, 0}, stopping_at({"bcd", "abx"}));
  EXPECT_EQ(said.generation.text, "abcba");
  EXPECT_EQ(said.generation.reason, StopReason::kMaxTokens);
  // Each letter as soon as it is certain: "ab" may become "abx" until "c" comes, "bc" "bcd".
  EXPECT_EQ(said.pieces, (std::vector<std::string>{"a", "bc", "b", "a"}));
}

// The text decides, not how it was cut into tokens nor the order of the stop strings.
TEST(Session, TheFirstStopStringInTheTextCounts) {
  for (const std::vector<Token>& tokens : {std::vector<Token>{3, 0, 1, 2}, {3, 4, 2}, {3, 0, 6}}) {
    EXPECT_EQ(say(letters(), tokens, stopping_at({"bc", "abc"})).generation.text, "d");
    EXPECT_EQ(say(letters(), tokens, stopping_at({"abc", "bc"})).generation.text, "d");
  }
}

TEST(Session, EmptyStopStringStopsNothing) {
  EXPECT_EQ(say(letters(), {0, 1}, stopping_at({""})).generation.text, "ab");
}

TEST(Session, StreamNeverSplitsUtf8) {
  // "é€" byte by byte, then a lone continuation byte, then one byte of an unfinished sequence.
  const PieceTokenizer bytes({"x", "\xc3", "\xa9", "\xe2", "\x82", "\xac"});
  const Said said = say(bytes, {1, 2, 3, 4, 5, 2, 0, 3}, GenerationOptions());
  EXPECT_EQ(said.generation.text, "é€\xEF\xBF\xBDx\xEF\xBF\xBD");
  EXPECT_EQ(said.pieces, (std::vector<std::string>{"é", "€", "\xEF\xBF\xBD", "x", "\xEF\xBF\xBD"}));
}

TEST(Session, StopsWhenTheContextIsFull) {
  const std::vector<Token> script(20, 1);
  ScriptedBackend backend(script, 7, 8);
  Session session(backend, letters());
  NoProgress progress;
  const auto on_text = [](std::string_view) {};
  const Generation generation =
      value_of(session.generate({0, 1, 1, 1, 1}, GenerationOptions(), on_text, progress));
  EXPECT_EQ(generation.reason, StopReason::kContextFull);
  EXPECT_EQ(generation.tokens.size(), 3U);
  const auto too_long =
      session.generate(std::vector<Token>(9, 1), GenerationOptions(), on_text, progress);
  ASSERT_FALSE(too_long.ok());
  EXPECT_NE(too_long.error().message().find("9 tokens"), std::string::npos);
  EXPECT_NE(too_long.error().message().find("holds 8"), std::string::npos);
}

TEST(Session, RefusesAnEmptyPromptForeignTokensAndBadOptions) {
  ScriptedBackend backend({1, 1, 1}, 7, 8);
  Session session(backend, letters());
  NoProgress progress;
  const auto refused = [&](const std::vector<Token>& prompt, const GenerationOptions& options) {
    const auto result = session.generate(
        prompt, options, [](std::string_view) {}, progress);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
  };
  refused({}, {});
  refused({7}, {});
  refused({-1}, {});
  GenerationOptions hot;
  hot.sampling.temperature = -1;
  refused({0}, hot);
  GenerationOptions backwards;
  backwards.max_tokens = -1;
  refused({0}, backwards);
  EXPECT_EQ(backend.computed, 0);
}

// A model whose weights are damaged says nothing, rather than its first token again and again.
TEST(Session, PredictionsThatAreNoNumbersAreAnError) {
  ScriptedBackend backend({0, 1, ScriptedBackend::kNoNumber, 1}, letters().vocab_size(), 1000);
  Session session(backend, letters());
  NoProgress progress;
  std::string text;
  const auto said = session.generate(
      {0}, {}, [&](std::string_view piece) { text += piece; }, progress);
  ASSERT_FALSE(said.ok());
  EXPECT_EQ(said.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(text, "b");
}

TEST(Session, ComputesOnlyWhatTheCacheDoesNotHold) {
  ScriptedBackend backend(std::vector<Token>(50, 1), 7, 100);
  Session session(backend, letters());
  NoProgress progress;
  GenerationOptions options;
  options.max_tokens = 2;
  const auto turn = [&](const std::vector<Token>& prompt) {
    backend.computed = 0;
    (void)value_of(session.generate(
        prompt, options, [](std::string_view) {}, progress));
    return backend.computed;
  };
  EXPECT_EQ(turn({0, 2, 2, 2}), 5);           // four of the prompt; the last token said is not run
  EXPECT_EQ(turn({0, 2, 2, 2, 1, 1, 4}), 3);  // 1 of the two said, 4, and one said
  EXPECT_EQ(turn({0, 2, 2}), 2);              // the last token again for its logits
  EXPECT_EQ(turn({5}), 2);
}

// Steps of several sessions in one batch are what each computes alone.
TEST(Session, StepsInOneBatchEqualEachAlone) {
  const Model model = testing::random_model(testing::config_json(), 6);
  const PieceTokenizer tokenizer = testing::byte_tokenizer(96);
  SimulatedBackend backend(model, {});
  constexpr int64_t kLengths[][2] = {{5, 1}, {1, 1}, {1, 4}, {7, 1}};  // tokens of two rounds
  std::deque<Session> together;
  std::deque<Session> alone;
  for (size_t s = 0; s < std::size(kLengths); ++s) {
    together.emplace_back(backend, tokenizer);
    alone.emplace_back(backend, tokenizer);
  }
  for (size_t round = 0; round < 2; ++round) {
    std::vector<std::vector<Token>> tokens;
    std::vector<Session::Step> steps;
    for (size_t s = 0; s < together.size(); ++s)
      tokens.push_back(testing::random_tokens(kLengths[s][round], 96, 10 * round + s));
    for (size_t s = 0; s < together.size(); ++s) steps.push_back({&together[s], tokens[s]});
    Matrix logits(std::ssize(steps), 96);
    testing::expect_ok(Session::run(steps, logits));
    for (size_t s = 0; s < alone.size(); ++s) {
      Matrix expected(1, 96);
      const Session::Step step{&alone[s], tokens[s]};
      testing::expect_ok(Session::run(std::span(&step, 1), expected));
      EXPECT_EQ(alone[s].tokens(), together[s].tokens());
      for (int64_t i = 0; i < 96; ++i)
        EXPECT_NEAR(logits(static_cast<int64_t>(s), i), expected(0, i), 1e-5) << "step " << s;
    }
  }
}

// A fork and its origin go on as two sessions that never met.
TEST(Session, ForksGoOnAlone) {
  const Model model = testing::random_model(testing::config_json(), 7);
  const PieceTokenizer tokenizer = testing::byte_tokenizer(96);
  NoProgress progress;
  const auto on_text = [](std::string_view) {};
  SimulatedBackend backend(model, {});
  Session origin(backend, tokenizer);
  std::vector<Token> text = testing::random_tokens(30, 96, 8);
  GenerationOptions options;
  options.max_tokens = 8;
  (void)value_of(origin.generate(text, options, on_text, progress));
  Session fork(origin);
  std::vector<Token> other = text;
  other.resize(20);
  text.push_back(1);
  other.push_back(2);
  for (int turn = 0; turn < 3; ++turn) {
    for (auto [session, tokens] : {std::pair(&origin, &text), std::pair(&fork, &other)}) {
      SimulatedBackend fresh_backend(model, {});
      Session fresh(fresh_backend, tokenizer);
      const auto said = value_of(session->generate(*tokens, options, on_text, progress)).tokens;
      EXPECT_EQ(said, value_of(fresh.generate(*tokens, options, on_text, progress)).tokens);
      tokens->insert(tokens->end(), said.begin(), said.end());
    }
  }
}

TEST(Session, RefusedStepsChangeNothing) {
  const Model model = testing::random_model(testing::config_json(), 6);
  const PieceTokenizer tokenizer = testing::byte_tokenizer(96);
  SimulatedBackend backend(model, {});
  Session session(backend, tokenizer);
  Matrix logits(1, 96);
  for (const std::vector<Token>& bad :
       {std::vector<Token>{}, {1, 96}, std::vector<Token>(513, 1)}) {
    const Session::Step step{&session, bad};
    const Status status = Session::run(std::span(&step, 1), logits);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(status.error().message().find("step without tokens") != std::string::npos,
              bad.empty());
    EXPECT_TRUE(session.tokens().empty());
  }
}

class StopAfter final : public Progress {
 public:
  explicit StopAfter(int checks) : left_(checks) {}
  void stage(std::string_view, int64_t) override {}
  void advance(int64_t) override {}
  bool cancelled() const override { return left_-- <= 0; }

 private:
  mutable int left_;
};

// An interrupted turn leaves a session that goes on as if it had not been.
TEST(Session, CanBeInterruptedAnywhereAndGoOn) {
  const Model model = testing::random_model(testing::config_json(), 1);
  const PieceTokenizer tokenizer = testing::byte_tokenizer(96);
  const std::vector<Token> prompt = testing::random_tokens(40, 96, 2);
  GenerationOptions options;
  options.max_tokens = 12;
  options.prefill_chunk = 16;
  const auto on_text = [](std::string_view) {};
  NoProgress progress;
  SimulatedBackend whole_backend(model, {});
  Session whole(whole_backend, tokenizer);
  const Generation expected = value_of(whole.generate(prompt, options, on_text, progress));
  for (const int checks : {0, 1, 2, 3, 5, 9}) {
    SimulatedBackend backend(model, {});
    Session session(backend, tokenizer);
    StopAfter stop(checks);
    const auto interrupted = session.generate(prompt, options, on_text, stop);
    ASSERT_FALSE(interrupted.ok());
    EXPECT_EQ(interrupted.error().code(), ErrorCode::kCancelled);
    EXPECT_EQ(value_of(session.generate(prompt, options, on_text, progress)).tokens,
              expected.tokens);
  }
}

TEST(Session, TurnsEqualAFreshSession) {
  const Model model = testing::random_model(testing::config_json(), 3);
  const PieceTokenizer tokenizer = testing::byte_tokenizer(96);
  Precision precision;
  precision.keys.bits = precision.values.bits = 4;
  NoProgress progress;
  GenerationOptions options;
  options.max_tokens = 10;
  const auto on_text = [](std::string_view) {};
  SimulatedBackend backend(model, precision);
  Session session(backend, tokenizer);
  std::vector<Token> conversation;
  for (uint64_t turn = 0; turn < 4; ++turn) {
    const std::vector<Token> message = testing::random_tokens(15, 96, 10 + turn);
    if (turn == 2) conversation.resize(20);  // the user edits what was said
    conversation.insert(conversation.end(), message.begin(), message.end());
    options.prefill_chunk = 1 + static_cast<int64_t>(turn) * 7;
    const auto answer = value_of(session.generate(conversation, options, on_text, progress));
    SimulatedBackend fresh_backend(model, precision);
    Session fresh(fresh_backend, tokenizer);
    EXPECT_EQ(answer.tokens,
              value_of(fresh.generate(conversation, options, on_text, progress)).tokens);
    conversation.insert(conversation.end(), answer.tokens.begin(), answer.tokens.end());
  }
}

// LongRoPE: a sequence is turned as its length asks, whole, however it came to that length. What a
// long prompt computes at once is what transformers computes.
TEST(Session, LongRopeDoesNotDependOnHowASequenceGrew) {
  const nlohmann::json rope = {{"rope_type", "longrope"},
                               {"short_factor", std::vector<double>(8, 1)},
                               {"long_factor", std::vector<double>(8, 8)}};
  const Model model = testing::random_model(
      testing::config_json({{"rope_scaling", rope}, {"original_max_position_embeddings", 48}}), 4);
  const PieceTokenizer tokenizer = testing::byte_tokenizer(96);
  const std::vector<Token> prompt = testing::random_tokens(40, 96, 5);
  NoProgress progress;
  GenerationOptions options;
  const auto on_text = [](std::string_view) {};
  options.max_tokens = 40;
  SimulatedBackend backend(model, {});
  Session session(backend, tokenizer);
  const auto grown = value_of(session.generate(prompt, options, on_text, progress)).tokens;
  options.max_tokens = 1;
  EXPECT_EQ(value_of(session.generate(prompt, options, on_text, progress)).tokens[0], grown[0]);
  options.prefill_chunk = 7;
  std::vector<Token> text = prompt;
  for (const Token token : grown) {
    SimulatedBackend fresh_backend(model, {});
    Session fresh(fresh_backend, tokenizer);
    EXPECT_EQ(value_of(fresh.generate(text, options, on_text, progress)).tokens,
              std::vector<Token>{token})
        << "after " << text.size();
    text.push_back(token);
  }
}

}  // namespace
}  // namespace quarot
