// The library as a program uses it, on a model small enough to run many times.
#include "quarot/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <thread>

#include "support/data.h"
#include "support/model.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using testing::data_folder;
using testing::value_of;

fs::path stories() { return *data_folder() / "models" / "stories260k" / "stories260K.bin"; }

GenerationOptions tokens(int64_t count) {
  GenerationOptions options;
  options.max_tokens = count;
  return options;
}

TEST(Engine, ContinuesAStoryAndStreamsIt) {
  QUAROT_NEEDS(data_folder());
  Engine engine = value_of(Engine::open(stories()));
  EXPECT_EQ(engine.model().family, "llama");
  EXPECT_EQ(engine.model().bits, "W16A16KV16");
  std::string streamed;
  Sequence sequence = engine.new_sequence();
  const std::vector<Token> prompt = engine.tokenize("Once upon a time");
  const Generation said =
      value_of(engine.generate(sequence, prompt, tokens(12), [&](std::string_view text) {
        streamed += text;
        return true;
      }));
  EXPECT_EQ(streamed, said.text);
  EXPECT_TRUE(said.text.starts_with(", there was a")) << said.text;
  EXPECT_TRUE(engine.detokenize(sequence.tokens()).starts_with("Once upon a time, there was a"));
}

TEST(Engine, GenerationStopsWhereTheListenerStops) {
  QUAROT_NEEDS(data_folder());
  Engine engine = value_of(Engine::open(stories()));
  Sequence sequence = engine.new_sequence();
  int pieces = 0;
  const auto stopped = engine.generate(sequence, engine.tokenize("Once"), tokens(100),
                                       [&](std::string_view) { return ++pieces < 3; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(pieces, 3);
  // Of the last text too; and nothing is handed to one that wanted no more.
  pieces = 0;
  Sequence other = engine.new_sequence();
  const auto last = engine.generate(other, engine.tokenize("Once"), tokens(1), [&](auto) {
    ++pieces;
    return false;
  });
  ASSERT_FALSE(last.ok());
  EXPECT_EQ(last.error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(pieces, 1);
}

// What generate() does by itself, by hand.
TEST(Engine, SaysWhichTokensEndAText) {
  QUAROT_NEEDS(data_folder());
  const Engine engine = value_of(Engine::open(stories()));
  EXPECT_TRUE(engine.ends(2));
  EXPECT_FALSE(engine.ends(engine.tokenize("Once").back()));
}

TEST(Engine, TextGoesOnWithItsSpaces) {
  QUAROT_NEEDS(data_folder());
  Engine engine = value_of(Engine::open(stories()));
  Sequence sequence = engine.new_sequence();
  const Generation said =
      value_of(engine.generate(sequence, engine.tokenize("Once upon"), tokens(4)));
  EXPECT_TRUE(said.text.starts_with(" a time")) << said.text;
  EXPECT_TRUE(engine.detokenize(sequence.tokens()).starts_with("Once upon a time"));
}

TEST(Engine, OpeningReportsAndCanBeStopped) {
  QUAROT_NEEDS(data_folder());
  EngineOptions options;
  options.recipe = "quarot";
  std::vector<std::string> stages;
  options.on_progress = [&](std::string_view stage, double share) {
    EXPECT_GE(share, 0);
    EXPECT_LE(share, 1);
    stages.emplace_back(stage);
    return true;
  };
  EXPECT_TRUE(Engine::open(stories(), options).ok());
  EXPECT_FALSE(stages.empty());
  options.on_progress = [](std::string_view, double) { return false; };
  const auto stopped = Engine::open(stories(), options);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code(), ErrorCode::kCancelled);
}

TEST(Engine, RefusesWhatMakesNoSense) {
  QUAROT_NEEDS(data_folder());
  EXPECT_EQ(Engine::open("nowhere").error().code(), ErrorCode::kNotFound);
  EngineOptions options;
  options.recipe = "quarrot";
  EXPECT_EQ(Engine::open(stories(), options).error().code(), ErrorCode::kNotFound);
  Engine engine = value_of(Engine::open(stories()));
  Engine other = value_of(Engine::open(stories()));
  Sequence ours = engine.new_sequence();
  Sequence foreign = other.new_sequence();
  const std::vector<Token> prompt = engine.tokenize("Once");
  const auto refused = [&](std::vector<Step> steps) {
    const auto result = engine.run(steps);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(ours.tokens().empty());
  };
  const std::vector<Token> unknown = {512};
  const std::vector<Token> endless(5000, 1);
  refused({{&foreign, prompt}});
  refused({{&ours, prompt}, {&ours, prompt}});
  refused({{&ours, {}}});
  refused({{&ours, unknown}});
  refused({{&ours, endless}});
  EXPECT_FALSE(engine.generate(foreign, prompt, {}).ok());
  EXPECT_EQ(engine.tokenize_chat({{"user", "Hello"}}).error().code(), ErrorCode::kUnsupported);
}

TEST(Engine, ASequenceKeepsItsModelAlive) {
  QUAROT_NEEDS(data_folder());
  std::optional<Engine> engine = value_of(Engine::open(stories()));
  std::optional<Sequence> sequence = engine->new_sequence();
  engine.reset();
  EXPECT_TRUE(sequence->tokens().empty());
  sequence.reset();
}

// Threads that generate, batch, open and end sequences at once, each as if it were alone.
void expect_turns(Engine& engine) {
  const std::vector<std::string> prompts = {"Once", "One day", "The dog", "Lily and Tom"};
  const auto alone = [&](const std::string& prompt) {
    Sequence sequence = engine.new_sequence();
    return value_of(engine.generate(sequence, engine.tokenize(prompt), tokens(10))).tokens;
  };
  std::vector<std::vector<Token>> expected;
  for (const std::string& prompt : prompts) expected.push_back(alone(prompt));
  std::vector<std::vector<Token>> found(prompts.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < prompts.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int again = 0; again < 3; ++again) found[i] = alone(prompts[i]);
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 20; ++i) {
      Sequence a = engine.new_sequence();
      Sequence b = engine.new_sequence();
      const std::vector<Token> prompt = engine.tokenize("Hello");
      const std::vector<Step> steps = {{&a, prompt}, {&b, prompt}};
      const std::vector<float> logits = value_of(engine.run(steps));
      const auto half = logits.begin() + std::ssize(logits) / 2;
      EXPECT_TRUE(std::equal(logits.begin(), half, half));
      EXPECT_GE(engine.cache_bytes(), 0);
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, expected);
}

TEST(Engine, ThreadsTakeTurnsWithTheFloatModel) {
  QUAROT_NEEDS(data_folder());
  Engine engine = value_of(Engine::open(stories()));
  expect_turns(engine);
}

TEST(Engine, ThreadsTakeTurnsWithThePackedModel) {
  QUAROT_NEEDS(testing::smollm2());
  const fs::path recipe =
      fs::temp_directory_path() / fmt::format("quarot-engine-{}.json", ::getpid());
  std::ofstream(recipe) << R"({"base": "quarot", "w_search_clip": false})";  // quick to make
  EngineOptions options;
  options.recipe = recipe.string();
  options.execution = Execution::kPacked;
  Engine engine = value_of(Engine::open(*testing::smollm2(), options));
  fs::remove(recipe);
  EXPECT_EQ(engine.model().bits, "W4A4KV4");
  expect_turns(engine);
}

}  // namespace
}  // namespace quarot
