// Ids and decoded texts against independent implementations: the golden folder's README says which.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/mapped_file.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "support/data.h"
#include "text/json_find.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Case {
  const char* name;
  const char* path;    // in the data folder
  bool parse_special;  // whether the reference took special tokens written in the text as such
};

class Golden : public ::testing::TestWithParam<Case> {
 protected:
  static std::unique_ptr<Tokenizer> open(const Case& c) {
    auto tokenizer = open_tokenizer(*testing::data_folder() / c.path);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
  }
};

const json& golden() {
  static const json value = *read_json_file(*testing::data_folder() / "golden" / "tokenizers.json");
  return value;
}

std::string first_characters(const std::string& text, size_t count) {
  size_t at = 0;
  for (; count > 0; --count) at += first_code_point(std::string_view(text).substr(at)).length;
  return text.substr(0, at);
}

void check(const Tokenizer& tokenizer, const std::string& name, bool parse_special) {
  const json& entries = golden().at(name);
  EXPECT_EQ(entries.size(), 26U);
  for (const json& entry : entries) {
    const std::string text = entry.at("text");
    const auto ids = tokenizer.encode(text, parse_special);
    EXPECT_EQ(ids, entry.at("ids").get<std::vector<Token>>()) << text;
    EXPECT_EQ(tokenizer.decode(ids), entry.at("decoded").get<std::string>());
  }
  const auto wiki = read_text_file(*testing::data_folder() / "wikitext2" / "test.joined.txt");
  ASSERT_TRUE(wiki.ok());
  EXPECT_EQ(tokenizer.encode(first_characters(*wiki, 60000), parse_special),
            golden().at(name + ":wikitext-test-first-60000-characters").get<std::vector<Token>>());
}

TEST_P(Golden, IdsAndTexts) {
  QUAROT_NEEDS(testing::data_folder());
  const auto tokenizer = open(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  check(*tokenizer, GetParam().name, GetParam().parse_special);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Golden,
                         ::testing::Values(Case{"llama2", "tokenizers/llama2", true},
                                           Case{"llama3", "tokenizers/llama3", true},
                                           Case{"qwen3", "tokenizers/qwen3", true},
                                           Case{"gpt2", "tokenizers/gpt2", false},
                                           Case{"mistral", "tokenizers/mistral", false},
                                           Case{"qwen", "tokenizers/qwen/qwen.tiktoken", false}),
                         [](const auto& test) { return std::string(test.param.name); });

// A model's own file is a little different: the same vocabulary, but metadata instead of
// components.
TEST(GoldenGguf, SmolLm2) {
  QUAROT_NEEDS(testing::data_folder());
  QUAROT_NEEDS(testing::smollm2());
  const auto file = open_gguf(*testing::smollm2());
  ASSERT_TRUE(file.ok()) << file.error().message();
  const auto tokenizer = open_tokenizer(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  check(**tokenizer, "smollm2", true);
  const auto wiki = read_text_file(*testing::data_folder() / "wikitext2" / "test.joined.txt");
  ASSERT_TRUE(wiki.ok());
  EXPECT_EQ((*tokenizer)->encode(*wiki).size(), 304986U);
  EXPECT_EQ((*tokenizer)->vocab_size(), 49152);
  EXPECT_EQ((*tokenizer)->bos(), 1);
  EXPECT_EQ((*tokenizer)->end_tokens(), std::vector<Token>{2});
  EXPECT_FALSE((*tokenizer)->adds_bos());
  EXPECT_TRUE((*tokenizer)->chat_template().has_value());
}

// Ids by sentencepiece 0.2.3 from tok512.model.
TEST(GoldenLlama2c, BothFilesOfStories260k) {
  QUAROT_NEEDS(testing::data_folder());
  const fs::path folder = *testing::data_folder() / "models" / "stories260k";
  for (const char* name : {"tok512.bin", "tok512.model", ""}) {
    const auto tokenizer = open_tokenizer(folder / name);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    const auto encode = [&](std::string_view text) { return (*tokenizer)->encode(text, false); };
    EXPECT_EQ(
        encode("Once upon a time, there was a little girl."),
        (std::vector<Token>{403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 426}));
    EXPECT_EQ(encode("日本 é\n"),
              (std::vector<Token>{410, 233, 154, 168, 233, 159, 175, 410, 485, 13}));
    EXPECT_EQ(encode(std::string("x\0y <s>", 7)),
              (std::vector<Token>{410, 444, 3, 422, 410, 504, 419, 505}));
    EXPECT_EQ(encode("a▁b"), (std::vector<Token>{261, 268}));
    EXPECT_EQ((*tokenizer)->decode(encode("日本 é\n")), "日本 é\n");
    EXPECT_EQ((*tokenizer)->bos(), 1);
    EXPECT_EQ((*tokenizer)->end_tokens(), std::vector<Token>{2});
    EXPECT_TRUE((*tokenizer)->adds_bos());
  }
  const auto model = open_tokenizer(folder / "tok512.model");
  EXPECT_EQ((*model)->encode("  two  spaces "),
            (std::vector<Token>{259, 424, 414, 262, 427, 412, 331, 419}));
}

TEST(GoldenSettings, WhatStandsBesideTheVocabulary) {
  QUAROT_NEEDS(testing::data_folder());
  const fs::path folder = *testing::data_folder() / "tokenizers";
  const auto qwen = open_tokenizer(folder / "qwen3");
  ASSERT_TRUE(qwen.ok());
  EXPECT_EQ((*qwen)->end_tokens(), std::vector<Token>{151645});
  EXPECT_FALSE((*qwen)->adds_bos());
  EXPECT_TRUE((*qwen)->chat_template()->starts_with("{%- if tools %}"));
  EXPECT_TRUE((*qwen)->is_special(151644));
  EXPECT_FALSE((*qwen)->is_special(151667));  // <think>
  const auto llama = open_tokenizer(folder / "llama3" / "tokenizer.json");
  ASSERT_TRUE(llama.ok());
  EXPECT_EQ((*llama)->bos(), 128000);
  EXPECT_EQ((*llama)->end_tokens(), (std::vector<Token>{128001, 128009}));
  const auto rank_file = open_tokenizer(folder / "qwen");
  ASSERT_TRUE(rank_file.ok());
  EXPECT_EQ((*rank_file)->encode("<|im_start|>a<|extra_204|>"),
            (std::vector<Token>{151644, 64, 151850}));
}

// Nothing is quadratic: a megabyte of the worst takes well under a second, and quadratic work on it
// would take minutes.
TEST_P(Golden, HostileTextsTakeLinearithmicTime) {
  QUAROT_NEEDS(testing::data_folder());
  const auto tokenizer = open(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  std::string marks;  // that canonical ordering has to move past each other
  for (int i = 0; i < 200'000; ++i) marks += "\u0301";
  for (int i = 0; i < 200'000; ++i) marks += "\u0323";
  std::string lines;
  for (int i = 0; i < 400'000; ++i) lines += " \n";
  for (const std::string& text :
       {std::string(1'000'000, 'a'), std::string(1'000'000, ' '), std::string(1'000'000, '<'),
        std::string(1'000'000, '\xFF'), marks, lines}) {
    const auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer->encode(text);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), 30.0) << text.substr(0, 2);
    EXPECT_FALSE(ids.empty());
  }
}

TEST_P(Golden, ThreadsShareOne) {
  QUAROT_NEEDS(testing::data_folder());
  const auto tokenizer = open(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const auto text = read_text_file(*testing::data_folder() / "calibration" / "multilingual.txt");
  ASSERT_TRUE(text.ok());
  const std::string part = lossy_utf8(text->substr(0, 50'000));
  const auto expected = tokenizer->encode(part);
  std::vector<std::vector<Token>> found(4);
  std::vector<std::thread> threads;
  for (auto& ids : found) threads.emplace_back([&] { ids = tokenizer->encode(part); });
  for (auto& thread : threads) thread.join();
  for (const auto& ids : found) EXPECT_EQ(ids, expected);
}

// Any bytes survive where the vocabulary has all bytes; decode() writes what is not UTF-8 as
// U+FFFD.
TEST_P(Golden, InvalidUtf8IsEncodedByteByByte) {
  QUAROT_NEEDS(testing::data_folder());
  const auto tokenizer = open(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const std::string text = "caf\xC3 \xF0\x9F\x98 \xED\xA0\x80 z\xFF";
  std::string bytes;
  for (const Token token : tokenizer->encode(text)) bytes += tokenizer->token_bytes(token);
  if (bytes.starts_with(' ')) bytes.erase(0, 1);  // the space that encoding put there
  EXPECT_EQ(bytes, text);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), lossy_utf8(text));
}

}  // namespace
}  // namespace quarot
