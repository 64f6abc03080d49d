// A chat prompt on its way from messages to ids, as quarot chat goes.
#include <gtest/gtest.h>

#include "support/model.h"
#include "text/chat_template.h"

namespace quarot {
namespace {

using testing::value_of;

TEST(Chat, SmolLM2PromptEqualsTransformers) {
  QUAROT_NEEDS(testing::data_folder());
  QUAROT_NEEDS(testing::smollm2());
  const nlohmann::json golden =
      testing::read_json(*testing::data_folder() / "golden" / "smollm2.chat.json");
  const auto tokenizer = value_of(value_of(open_checkpoint(*testing::smollm2()))->open_tokenizer());
  ASSERT_TRUE(tokenizer->chat_template().has_value());
  const ChatTemplate chat_template = value_of(ChatTemplate::parse(*tokenizer->chat_template()));
  const std::string prompt =
      value_of(chat_template.render(std::vector<ChatMessage>{{"user", "What is gravity?"}}, true,
                                    {{"bos_token", tokenizer->token_bytes(*tokenizer->bos())}}));
  EXPECT_EQ(prompt, golden["text"].get<std::string>());
  EXPECT_EQ(tokenizer->encode(prompt), golden["ids"].get<std::vector<Token>>());
}

}  // namespace
}  // namespace quarot
