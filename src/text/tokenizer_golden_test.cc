// Ids and decoded texts against independent implementations: the golden folder's README says which.
#include <gtest/gtest.h>

#include <fstream>

#include "base/mapped_file.h"
#include "formats/gguf.h"
#include "support/data.h"
#include "formats/json.h"
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

json golden() {
  static const json value = *read_json_file(*testing::data_folder() / "golden" / "tokenizers.json");
  return value;
}

std::string first_characters(const std::string& text, size_t count) {
  size_t at = 0;
  for (; count > 0; --count) at += first_code_point(std::string_view(text).substr(at)).length;
  return text.substr(0, at);
}

void check(const Tokenizer& tokenizer, const std::string& name, bool parse_special) {
  for (const json& entry : golden().at(name)) {
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

}  // namespace
}  // namespace quarot
