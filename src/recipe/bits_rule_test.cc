// The grammar of rules for bits, and what they make of a layer.
#include "recipe/bits_rule.h"

#include <gtest/gtest.h>

#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::value_of;

std::vector<BitsRule> rules(std::initializer_list<const char*> texts) {
  std::vector<BitsRule> all;
  for (const char* text : texts) all.push_back(value_of(parse_bits_rule(text)));
  return all;
}

TEST(BitsRule, IsReadAndWrittenBack) {
  for (const char* text : {"o_proj=A8", "all=W8A8", "qkv_proj@0=A2", "gate_up_proj@0-3,29=W8A5",
                           "down_proj@7,3-3000000000=W3", "v_proj=W8", "up_proj@1=W2"}) {
    const BitsRule rule = value_of(parse_bits_rule(text));
    EXPECT_EQ(to_text(rule), text);
  }
  const BitsRule rule = value_of(parse_bits_rule("down_proj@0-3,29-29=W8A6"));
  EXPECT_EQ(rule, (BitsRule{"down_proj", {{0, 3}, {29, 29}}, 8, 6}));
  EXPECT_EQ(to_text(rule), "down_proj@0-3,29=W8A6");
}

TEST(BitsRule, WhatIsNoneIsRefused) {
  for (const char* text : {"",
                           "=",
                           "o_proj",
                           "o_proj=",
                           "=A8",
                           "o_proj=8",
                           "o_proj=A",
                           "o_proj=A1",
                           "o_proj=A9",
                           "o_proj=A16",
                           "o_proj=A-8",
                           "o_proj=A8W8",
                           "o_proj=A8A8",
                           "o_proj=A8 ",
                           "o_proj=KV8",
                           "O_proj=A8",
                           "heads=A8",
                           "o_proj@=A8",
                           "o_proj@a=A8",
                           "o_proj@3-1=A8",
                           "o_proj@-1=A8",
                           "o_proj@1-=A8",
                           "o_proj@1,=A8",
                           "o_proj@1,,2=A8",
                           "o_proj@99999999999999999999=A8",
                           "o_proj=W99999999999999999999",
                           "o_proj@1@2=A8"}) {
    const auto rule = parse_bits_rule(text);
    ASSERT_FALSE(rule.ok()) << text;
    EXPECT_EQ(rule.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(rule.error().message().find("expected PLACE=BITS"), std::string::npos) << text;
  }
  for (const char* text : {"q_proj=A8", "up_proj@0=W8A8"}) {
    const auto rule = parse_bits_rule(text);
    ASSERT_FALSE(rule.ok()) << text;
    EXPECT_NE(rule.error().message().find("name them all"), std::string::npos) << text;
  }
}

TEST(BitsRule, ConcernsItsPlaceAndLayers) {
  const auto all = rules({"o_proj@1-2=A8", "v_proj@2=W8", "gate_up_proj@0=W8"});
  EXPECT_EQ(bits_of(all, 0).activations, (SiteBits{0, 0, 0, 0}));
  EXPECT_EQ(bits_of(all, 0).weights, (std::array{0, 0, 0, 0, 8, 8, 0}));
  EXPECT_EQ(bits_of(all, 1).activations, (SiteBits{0, 8, 0, 0}));
  EXPECT_EQ(bits_of(all, 1).weights, (std::array{0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(bits_of(all, 2).activations, (SiteBits{0, 8, 0, 0}));
  EXPECT_EQ(bits_of(all, 2).weights, (std::array{0, 0, 8, 0, 0, 0, 0}));
  EXPECT_EQ(bits_of(all, 3).activations, SiteBits{});
}

TEST(BitsRule, TheLastOneWins) {
  const auto all = rules({"all=W8A8", "qkv_proj@0=A6", "k_proj=W5", "down_proj=A7"});
  EXPECT_EQ(bits_of(all, 0).activations, (SiteBits{6, 8, 8, 7}));
  EXPECT_EQ(bits_of(all, 1).activations, (SiteBits{8, 8, 8, 7}));
  EXPECT_EQ(bits_of(all, 1).weights, (std::array{8, 5, 8, 8, 8, 8, 8}));
}

TEST(BitsRule, OfASiteWithItsLayersInRanges) {
  EXPECT_EQ(to_text(rule_for(Space::kAttentionInput, {true, true, false, true}, 8, 0)),
            "qkv_proj@0-1,3=W8");
  EXPECT_EQ(to_text(rule_for(Space::kFfnHidden, {false, true, true}, 0, 8)), "down_proj@1-2=A8");
  EXPECT_TRUE(rule_for(Space::kFfnInput, {false, false}, 0, 8).layers.empty());
}

TEST(BitsRule, LayersThatThereAreNot) {
  const ModelConfig config = value_of(parse_config(testing::config_json(), "test"));  // of two
  testing::expect_ok(check(rules({"all=A8", "o_proj@0-1=A8"}), config));
  for (const char* text : {"o_proj@2=A8", "o_proj@0-9223372036854775807=A8"}) {
    const Status status = check(rules({text}), config);
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message().find("layers 0 to 1"), std::string::npos);
  }
}

}  // namespace
}  // namespace quarot
