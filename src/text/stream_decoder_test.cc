#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "support/data.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace quarot {
namespace {

// Whatever a model emits: the pieces are each whole characters, and together the decoded text.
void check(const char* path) {
  QUAROT_NEEDS(testing::data_folder());
  const auto opened = open_tokenizer(*testing::data_folder() / path);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const Tokenizer& tokenizer = **opened;
  // Tokens of single bytes are where sequences break: as likely as all others together.
  std::vector<Token> pieces;
  for (Token token = 0; token < tokenizer.vocab_size(); ++token) {
    if (tokenizer.token_bytes(token).size() == 1) pieces.push_back(token);
  }
  const auto any =
      rc::gen::oneOf(rc::gen::inRange<Token>(-1, static_cast<Token>(tokenizer.vocab_size()) + 1),
                     rc::gen::elementOf(pieces));
  const bool holds = rc::check("pushes join to the whole", [&] {
    const auto tokens = *rc::gen::container<std::vector<Token>>(any);
    const bool skip_special = *rc::gen::arbitrary<bool>();
    StreamDecoder stream(tokenizer, skip_special);
    std::string text;
    for (const Token token : tokens) {
      const std::string part = stream.push(token);
      RC_ASSERT(is_valid_utf8(part));
      text += part;
    }
    text += stream.finish();
    RC_ASSERT(text == tokenizer.decode(tokens, skip_special));
  });
  EXPECT_TRUE(holds);
}

TEST(StreamDecoder, ByteLevel) { check("tokenizers/gpt2"); }
TEST(StreamDecoder, SentencePiece) { check("tokenizers/mistral"); }
TEST(StreamDecoder, TokenizerJson) { check("tokenizers/llama2"); }

// "Once upon" and " a time" is "Once upon a time"; after a special token the text is a new one.
TEST(StreamDecoder, GoesOnWhereAPromptEnds) {
  QUAROT_NEEDS(testing::data_folder());
  const auto tokenizer = open_tokenizer(*testing::data_folder() / "tokenizers" / "mistral");
  ASSERT_TRUE(tokenizer.ok());
  const std::vector<Token> prompt = (*tokenizer)->encode("Once upon");
  const Token next = (*tokenizer)->encode("a").front();
  ASSERT_EQ((*tokenizer)->token_bytes(next), " a");
  const auto said_after = [&](const std::vector<Token>& tokens) {
    StreamDecoder stream(**tokenizer);
    stream.follow(tokens);
    return stream.push(next);
  };
  EXPECT_EQ(said_after(prompt), " a");
  EXPECT_EQ(said_after({}), "a");
  EXPECT_EQ(said_after({*(*tokenizer)->bos()}), "a");
  EXPECT_EQ(said_after({prompt[0], *(*tokenizer)->bos()}), "a");
}

TEST(StreamDecoder, HoldsBackWhatIsIncomplete) {
  QUAROT_NEEDS(testing::data_folder());
  const auto tokenizer = open_tokenizer(*testing::data_folder() / "tokenizers" / "mistral");
  ASSERT_TRUE(tokenizer.ok());
  StreamDecoder stream(**tokenizer);
  std::vector<std::string> parts;
  for (const Token token : (*tokenizer)->encode("a 🏳")) parts.push_back(stream.push(token));
  // ▁a, ▁, then four bytes.
  EXPECT_EQ(parts, (std::vector<std::string>{"a", " ", "", "", "", "🏳"}));
  EXPECT_EQ(stream.finish(), "");
  stream.push(*(*tokenizer)->token_id("<0xF0>"));
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

}  // namespace
}  // namespace quarot
