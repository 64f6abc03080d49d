// The parts a tokenizer is made of. What is expected of normalisers, pre-tokenizers and added
// tokens was computed with Hugging Face tokenizers 0.23.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/unigram.h"
#include "text/utf8.h"

namespace quarot {
namespace {

using Strings = std::vector<std::string>;

TEST(Utf8, MaximalSubparts) {
  // The example of the Unicode standard, table 3-8 and following.
  EXPECT_EQ(lossy_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  EXPECT_EQ(lossy_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  EXPECT_EQ(lossy_utf8("\xF4\x8F\xBF\xBF\xED\x9F\xBF"), "\U0010FFFF\uD7FF");
  EXPECT_FALSE(is_valid_utf8("\xED\xA0\x80"));
}

TEST(Utf8, CompletePrefix) {
  EXPECT_EQ(complete_utf8_prefix("a\xF0\x9F\x98"), 1U);
  EXPECT_EQ(complete_utf8_prefix("a\xF0\x9F\x98\x80"), 5U);
  EXPECT_EQ(complete_utf8_prefix("\xE2"), 0U);
  EXPECT_EQ(complete_utf8_prefix("\xE2\x41"), 2U);
  EXPECT_EQ(complete_utf8_prefix("\x80\x80\x80"), 3U);
  EXPECT_EQ(complete_utf8_prefix(""), 0U);
}

RC_GTEST_PROP(Utf8, EscapesGiveBackTheBytes, (const std::string& bytes)) {
  std::string_view text;
  const std::string escaped = escape_invalid_utf8(bytes);
  std::string back;
  for (text = escaped; !text.empty(); text.remove_prefix(first_code_point(text).length)) {
    const int byte = escaped_byte(text);
    if (byte >= 0) {
      back += static_cast<char>(byte);
    } else {
      back += text.substr(0, first_code_point(text).length);
    }
  }
  RC_ASSERT(back == bytes);
  RC_ASSERT(is_valid_utf8(bytes) == (escaped == bytes));
}

RC_GTEST_PROP(ByteAlphabet, IsOneToOne, (const std::string& bytes)) {
  const std::string text = to_byte_alphabet(bytes);
  RC_ASSERT(is_valid_utf8(text));
  RC_ASSERT(from_byte_alphabet(text) == bytes);
}

TEST(ByteAlphabet, IsGpt2s) {
  EXPECT_EQ(to_byte_alphabet(std::string(" \n\0!\xAD\xFF", 6)), "ĠĊĀ!Ńÿ");
  EXPECT_FALSE(from_byte_alphabet("a b").has_value());
  EXPECT_FALSE(from_byte_alphabet("日").has_value());
}

std::string normalized(Normalizer::Step step, std::string_view text) {
  Normalizer normalizer;
  normalizer.add(std::move(step));
  return normalizer.apply(text);
}

TEST(Normalizer, UnicodeForms) {
  const Normalizer::UnicodeForm nfc{true, false};
  const Normalizer::UnicodeForm nfd{false, false};
  const Normalizer::UnicodeForm nfkc{true, true};
  const Normalizer::UnicodeForm nfkd{false, true};
  EXPECT_EQ(normalized(nfc, "e\u0301 \u212b \ufb01 \u00bd"), "\u00e9 \u00c5 \ufb01 \u00bd");
  EXPECT_EQ(normalized(nfd, "e\u0301 \u212b \ufb01 \u00bd"), "e\u0301 A\u030a \ufb01 \u00bd");
  EXPECT_EQ(normalized(nfkc, "e\u0301 \u212b \ufb01 \u00bd"), "\u00e9 \u00c5 fi 1\u20442");
  EXPECT_EQ(normalized(nfkd, "e\u0301 \u212b \ufb01 \u00bd"), "e\u0301 A\u030a fi 1\u20442");
  EXPECT_EQ(normalized(nfc, "q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(normalized(nfc, "\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(normalized(nfd, "\ud55c"), "\u1112\u1161\u11ab");
  EXPECT_EQ(normalized(nfc, "a\u0315\u0300\u05ae\u0300b"), "\u00e0\u05ae\u0300\u0315b");
  EXPECT_EQ(normalized(nfd, "a\u0315\u0300\u05ae\u0300b"), "a\u05ae\u0300\u0300\u0315b");
  EXPECT_EQ(normalized(nfc, "\u0344"), "\u0308\u0301");
  EXPECT_EQ(normalized(nfc, ""), "");
}

TEST(Normalizer, OtherSteps) {
  EXPECT_EQ(normalized(Normalizer::Lowercase{}, "\u0130STANBUL \u1e9e"), "i\u0307stanbul \u00df");
  EXPECT_EQ(normalized(Normalizer::Strip{true, true}, "\u3000 a b\t"), "a b");
  EXPECT_EQ(normalized(Normalizer::Strip{false, true}, " a "), " a");
  EXPECT_EQ(normalized(Normalizer::Strip{true, true}, " \n "), "");
  EXPECT_EQ(normalized(Normalizer::Prepend{"▁"}, "a"), "▁a");
  EXPECT_EQ(normalized(Normalizer::Prepend{"▁"}, ""), "");
  EXPECT_EQ(normalized(Normalizer::Replace{Regex::literal(" "), "▁"}, " a  b"), "▁a▁▁b");
  EXPECT_EQ(normalized(Normalizer::Replace{*Regex::compile(" {2,}"), "_"}, " a   b"), " a_b");
  EXPECT_EQ(normalized(Normalizer::CollapseSpaces{}, "  a   b "), "a b");
}

Strings pieces(PreTokenizer::Step step, std::string_view text) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.add(std::move(step));
  const auto split = pre_tokenizer.split(text, true);
  return {split.views.begin(), split.views.end()};
}

TEST(PreTokenizer, SplitBehaviors) {
  using Behavior = PreTokenizer::Behavior;
  const auto split = [](Behavior behavior, bool invert) {
    return pieces(PreTokenizer::Split{Regex::literal("-"), behavior, invert}, "a--b-c-");
  };
  EXPECT_EQ(split(Behavior::kRemoved, false), (Strings{"a", "b", "c"}));
  EXPECT_EQ(split(Behavior::kRemoved, true), (Strings{"-", "-", "-", "-"}));
  EXPECT_EQ(split(Behavior::kIsolated, false), (Strings{"a", "-", "-", "b", "-", "c", "-"}));
  EXPECT_EQ(split(Behavior::kMergedWithPrevious, false), (Strings{"a-", "-", "b-", "c-"}));
  EXPECT_EQ(split(Behavior::kMergedWithPrevious, true), (Strings{"a", "-", "-b", "-c", "-"}));
  EXPECT_EQ(split(Behavior::kMergedWithNext, false), (Strings{"a", "-", "-b", "-c", "-"}));
  EXPECT_EQ(split(Behavior::kMergedWithNext, true), (Strings{"a-", "-", "b-", "c-"}));
  EXPECT_EQ(split(Behavior::kContiguous, false), (Strings{"a", "--", "b", "-", "c", "-"}));
}

TEST(PreTokenizer, Metaspace) {
  using Prepend = PreTokenizer::Metaspace::Prepend;
  const auto split = [](Prepend prepend, bool cut) {
    return pieces(PreTokenizer::Metaspace{"▁", prepend, cut}, "a  b ▁c");
  };
  EXPECT_EQ(split(Prepend::kAlways, true), (Strings{"▁a", "▁", "▁b", "▁", "▁c"}));
  EXPECT_EQ(split(Prepend::kFirst, false), (Strings{"▁a▁▁b▁▁c"}));
  EXPECT_EQ(split(Prepend::kNever, true), (Strings{"a", "▁", "▁b", "▁", "▁c"}));
}

TEST(PreTokenizer, SpacesAreUnicodes) {
  EXPECT_EQ(pieces(PreTokenizer::Split{*Regex::compile(R"(\s+)")}, "a\u180eb\u0085c\u3000d"),
            (Strings{"a\u180eb", "\u0085", "c", "\u3000", "d"}));
  EXPECT_EQ(pieces(PreTokenizer::Split{*Regex::compile(R"([^\S]+|\\s)")}, R"(a b\sc)"),
            (Strings{"a", " ", "b", "\\s", "c"}));
}

TEST(Regex, RefusesWhatIsWrongOrTooLarge) {
  EXPECT_EQ(Regex::compile("(a").error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(Regex::compile("[a&&[b]]").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(Regex::compile(std::string(1 << 20, 'a')).error().code(), ErrorCode::kUnsupported);
  EXPECT_FALSE(Regex::compile(std::string(1000, '(') + std::string(1000, ')')).ok());
  EXPECT_FALSE(Regex::compile("((a{1000}){1000}){1000}").ok());
}

TEST(Regex, GivesUpOnEndlessBacktracking) {
  const auto regex = Regex::compile("(?:(?:a+)+)+b|c");
  ASSERT_TRUE(regex.ok());
  int matches = 0;
  regex->for_each_match("c" + std::string(5000, 'a') + "c", [&](size_t, size_t) { ++matches; });
  EXPECT_GE(matches, 1);
}

Strings added(std::string_view text) {
  const auto token = [](Token id, std::string content) {
    AddedToken result;
    result.id = id;
    result.pattern = result.content = std::move(content);
    return result;
  };
  AddedToken left = token(0, "<l>");
  left.lstrip = true;
  AddedToken right = token(1, "<r>");
  right.rstrip = true;
  AddedToken word = token(2, "<w>");
  word.single_word = true;
  AddedToken special = token(4, "<s>");
  special.special = true;
  const AddedTokens tokens({left, right, word, token(3, "<w>a"), special});
  Strings result;
  for (const auto& [segment, id] : tokens.split(text, false))
    result.push_back(id ? fmt::format("{}#{}", segment, *id) : std::string(segment));
  return result;
}

TEST(AddedTokens, StripsAndWords) {
  EXPECT_EQ(added("a  <l> b"), (Strings{"a", "  <l>#0", " b"}));
  EXPECT_EQ(added("a <r>  b"), (Strings{"a ", "<r>  #1", "b"}));
  EXPECT_EQ(added("a<w>b"), (Strings{"a<w>b"}));
  EXPECT_EQ(added("a <w> b"), (Strings{"a ", "<w>#2", " b"}));
  EXPECT_EQ(added("<w>ab"), (Strings{"<w>a#3", "b"}));
  EXPECT_EQ(added("<l><r> <l>"), (Strings{"<l>#0", "<r> #1", "<l>#0"}));
  EXPECT_EQ(added("<s>"), (Strings{"<s>"}));  // special, and those are not asked for
}

// Byte-pair encoding as its paper defines it, in quadratic time.
std::vector<Token> merged_naively(std::vector<Token> ids, std::span<const Bpe::Merge> merges) {
  while (true) {
    const Bpe::Merge* best = nullptr;
    size_t where = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (const Bpe::Merge& merge : merges) {
        if (merge.left == ids[i] && merge.right == ids[i + 1] &&
            (best == nullptr || merge.rank < best->rank)) {
          best = &merge;
          where = i;
        }
      }
    }
    if (best == nullptr) return ids;
    ids[where] = best->result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(where) + 1);
  }
}

// A vocabulary of strings over "abcd" whose tokens may come about by any merge, in random order.
RC_GTEST_PROP(Bpe, EqualsTheDefinition, ()) {
  Vocabulary vocabulary;
  for (Token id = 0; id < 4; ++id) RC_ASSERT(vocabulary.add(id, std::string(1, "abcd"[id])).ok());
  std::vector<RankedToken> ranked;
  for (Token id = 0; id < 4; ++id) ranked.push_back({id, static_cast<uint32_t>(id)});
  const auto letters = rc::gen::container<std::string>(rc::gen::elementOf(std::string("abcd")));
  for (const std::string& content : *rc::gen::container<Strings>(letters)) {
    const auto id = static_cast<Token>(vocabulary.size());
    if (content.empty() || !vocabulary.add(id, content).ok()) continue;
    ranked.push_back({id, *rc::gen::inRange<uint32_t>(0, 8)});  // ties too
  }
  const auto merges = implied_merges(vocabulary, ranked);
  const Bpe model(vocabulary, merges, {});
  const std::string text = *letters;
  std::vector<Token> ids;
  for (const char c : text) ids.push_back(*vocabulary.id(std::string(1, c)));
  std::vector<Token> found;
  const std::string_view word = text;
  model.encode(std::span(&word, text.empty() ? 0 : 1), found);
  RC_ASSERT(found == merged_naively(ids, merges));
}

TEST(Bpe, UnknownCharactersFuseAcrossCuts) {
  Vocabulary vocabulary;
  ASSERT_TRUE(vocabulary.add(0, "<unk>").ok());
  ASSERT_TRUE(vocabulary.add(1, "a").ok());
  Bpe::Options options;
  options.unknown = UnknownCharacters(vocabulary, 0, true, false);
  const Bpe model(vocabulary, {}, options);
  const std::vector<std::string_view> words = {"xyxaxxy", "xx"};
  std::vector<Token> ids;
  model.encode(words, ids);
  EXPECT_EQ(ids, (std::vector<Token>{0, 1, 0, 0}));  // a run ends with its word
}

TEST(Unigram, TakesTheBestPath) {
  Vocabulary vocabulary;
  std::vector<Unigram::Piece> scores;
  const std::vector<std::pair<const char*, double>> entries = {
      {"<unk>", 0}, {"▁", -2},   {"▁a", -2.5}, {"a", -3}, {"b", -3.2},
      {"ab", -4.0}, {"▁ab", -5}, {"ba", -4.1}, {"c", -6}};
  for (const auto& [content, score] : entries) {
    const auto id = static_cast<Token>(scores.size());
    ASSERT_TRUE(vocabulary.add(id, content).ok());
    scores.push_back({id, score});
  }
  const Unigram model(vocabulary, scores, UnknownCharacters(vocabulary, 0, true, false));
  const auto encode = [&](std::string_view text) {
    const auto words =
        pieces(PreTokenizer::Metaspace{"▁", PreTokenizer::Metaspace::Prepend::kAlways, true}, text);
    const std::vector<std::string_view> views(words.begin(), words.end());
    std::vector<Token> ids;
    model.encode(views, ids);
    return ids;
  };
  EXPECT_EQ(encode("ab ba"), (std::vector<Token>{6, 1, 7}));
  EXPECT_EQ(encode("abab  cab"), (std::vector<Token>{6, 5, 1, 1, 8, 5}));
  EXPECT_EQ(encode("xyzab"), (std::vector<Token>{1, 0, 5}));
  EXPECT_EQ(encode("a x y"), (std::vector<Token>{2, 1, 0, 1, 0}));
}

}  // namespace
}  // namespace quarot
