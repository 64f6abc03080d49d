// The file formats: what is read from each, and what is refused and how.
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "formats/gguf.h"
#include "text/byte_level_tokenizer.h"
#include "text/sentencepiece.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<Token>;

template <typename R>
void expect_error(const R& result, ErrorCode code, std::string_view part) {
  ASSERT_FALSE(result.ok()) << part;
  EXPECT_EQ(result.error().code(), code) << result.error().message();
  EXPECT_NE(result.error().message().find(part), std::string::npos) << result.error().message();
}

// A tokenizer.json with these members; a vocabulary of a, b, ab if no model is given.
std::string file_with(std::string_view members) {
  std::string text = "{" + std::string(members);
  if (members.find("\"model\"") == std::string_view::npos) {
    text += std::string(members.empty() ? "" : ",") +
            R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]})";
  }
  return text + "}";
}

Result<std::unique_ptr<Tokenizer>> parse(std::string_view members) {
  return parse_tokenizer_json(file_with(members), {});
}

TEST(TokenizerJson, Minimal) {
  const auto tokenizer = parse("");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ((*tokenizer)->encode("abba"), (Tokens{2, 1, 0}));
  EXPECT_EQ((*tokenizer)->encode("xax"), (Tokens{0}));  // no unknown token: left out
  EXPECT_EQ((*tokenizer)->decode(Tokens{2, 7, -1, 0}), "aba");
}

TEST(TokenizerJson, NormalizedAddedTokensAreFoundInNormalizedText) {
  const auto tokenizer = parse(
      R"("normalizer":{"type":"Lowercase"},"added_tokens":[
        {"id":3,"content":"BB","normalized":true,"special":false},
        {"id":4,"content":"AA","normalized":false,"special":true}])");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ((*tokenizer)->encode("AbB"), (Tokens{0, 3}));
  EXPECT_EQ((*tokenizer)->encode("aaAA"), (Tokens{0, 0, 4}));
  EXPECT_EQ((*tokenizer)->encode("AABB", false), (Tokens{0, 0, 3}));
}

TEST(TokenizerJson, RefusesWhatItCannotFollow) {
  const auto unsupported = [](std::string_view members, std::string_view part) {
    expect_error(parse(members), ErrorCode::kUnsupported, part);
  };
  const auto corrupt = [](std::string_view members, std::string_view part) {
    expect_error(parse(members), ErrorCode::kCorrupt, part);
  };
  unsupported(R"("normalizer":{"type":"Nmt"})", "the normalizer 'Nmt' is not supported; known: Se");
  unsupported(R"("pre_tokenizer":{"type":"Whitespace"})", "pre-tokenizer 'Whitespace'");
  unsupported(R"("decoder":{"type":"WordPiece"})", "decoder 'WordPiece'");
  unsupported(R"("model":{"type":"WordPiece"})", "model 'WordPiece'");
  unsupported(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Odd"})",
              "behavior");
  unsupported(R"("decoder":{"type":"Strip","content":"x","start":1})", "Strip");
  corrupt(R"("normalizer":{"type":"Replace","pattern":{"Regex":"("},"content":""})", "'('");
  corrupt(R"("normalizer":{"type":"Sequence"})", "normalizers");
  corrupt(R"("model":{"vocab":{"a":0,"b":0},"merges":[]})", "id 0 is given to both 'a' and 'b'");
  corrupt(R"("model":{"vocab":{"a":2147483648},"merges":[]})", "2147483648 is outside");
  corrupt(R"("model":{"vocab":{"a":18446744073709551615},"merges":[]})", "not an integer");
  corrupt(R"("model":{"vocab":{"a":-1},"merges":[]})", "-1");
  corrupt(R"("model":{"vocab":{"a":0,"b":1},"merges":["a b"]})", "needs the token 'ab'");
  corrupt(R"("model":{"vocab":{"a":0},"merges":["a"]})", "not two tokens");
  corrupt(R"("model":{"vocab":{"a":0},"merges":[["a"]]})", "not a pair");
  corrupt(R"("model":{"vocab":{"a":0},"merges":[],"unk_token":"u"})", "unk_token 'u'");
  corrupt(R"("model":{"type":"Unigram","vocab":[["a",0]],"unk_id":1})", "unk_id");
  corrupt(R"("added_tokens":[{"id":3,"content":"x"},{"id":3,"content":"y"}])", "same id 3");
  corrupt(R"("added_tokens":[{"id":4294967296,"content":"x"}])", "valid id");
  corrupt(R"("added_tokens":[{"id":5,"content":"a"}])", "has id 5");
  std::string deep = R"("normalizer":)";
  for (int i = 0; i < 20; ++i) deep += R"({"type":"Sequence","normalizers":[)";
  for (int i = 0; i < 20; ++i) deep += "]}";
  unsupported(deep, "nests");
  expect_error(parse_tokenizer_json(std::string(1'000'000, '['), {}), ErrorCode::kCorrupt, "JSON");
  expect_error(parse_tokenizer_json("{", {}), ErrorCode::kCorrupt, "JSON");
  expect_error(parse_tokenizer_json("[]", {}), ErrorCode::kCorrupt, "no model");
}

SentencePieceModel pieces(SentencePieceModel::Algorithm algorithm) {
  using Kind = SentencePieceModel::Kind;
  SentencePieceModel model;
  model.algorithm = algorithm;
  model.pieces = {
      {"<unk>", 0, Kind::kUnknown},     {"<s>", 0, Kind::kControl}, {"</s>", 0, Kind::kControl},
      {"<sep>", 0, Kind::kUserDefined}, {"▁", -4, Kind::kNormal},   {"a", -3, Kind::kNormal},
      {"b", -3, Kind::kNormal},         {"▁a", -1, Kind::kNormal},  {"ab", -2, Kind::kNormal}};
  model.bos = 1;
  model.eos = 2;
  return model;
}

TEST(SentencePiece, BothAlgorithms) {
  using Algorithm = SentencePieceModel::Algorithm;
  for (const auto algorithm : {Algorithm::kBpe, Algorithm::kUnigram}) {
    const auto tokenizer = make_sentencepiece_tokenizer(pieces(algorithm), {});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    EXPECT_EQ((*tokenizer)->encode("  ab   xx<s>"), (Tokens{7, 6, 4, 0, 1}));
    // A user-defined piece neither splits off a prefix nor needs leave.
    EXPECT_EQ((*tokenizer)->encode("ab<sep>ab", false), (Tokens{7, 6, 3, 8}));
    EXPECT_EQ((*tokenizer)->decode(Tokens{1, 7, 6, 3, 8}, true), "ab<sep>ab");
    EXPECT_TRUE((*tokenizer)->adds_bos());
    EXPECT_EQ((*tokenizer)->end_tokens(), Tokens{2});
  }
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string with_length(int field, std::string_view bytes) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}
std::string number(int field, uint64_t value) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(value);
}
std::string piece(std::string_view content, uint64_t kind, float score) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &score, 4);
  return with_length(1, with_length(1, content) + varint(2 << 3 | 5) + bytes + number(3, kind));
}

TEST(SentencePieceFile, ReadsTheFieldsItNeeds) {
  const std::string file =
      piece("<unk>", 2, 0) + piece("<s>", 3, 0) + piece("a", 1, -1.5F) +
      with_length(2, number(3, 2) + number(41, 1) + number(42, ~0ULL)) +
      with_length(3, with_length(1, "identity") + number(3, 0) + number(4, 0)) +
      with_length(99, "passed over");
  const auto model = parse_sentencepiece_model(file);
  ASSERT_TRUE(model.ok()) << model.error().message();
  ASSERT_EQ(model->pieces.size(), 3U);
  EXPECT_EQ(model->pieces[2].content, "a");
  EXPECT_EQ(model->pieces[2].score, -1.5F);
  EXPECT_EQ(model->algorithm, SentencePieceModel::Algorithm::kBpe);
  EXPECT_FALSE(model->add_dummy_prefix);
  EXPECT_FALSE(model->remove_extra_whitespaces);
  EXPECT_EQ(model->bos, 1);
  EXPECT_FALSE(model->eos.has_value());
  for (size_t length = 0; length < file.size(); ++length)
    static_cast<void>(parse_sentencepiece_model(std::string_view(file).substr(0, length)));
}

TEST(SentencePieceFile, RefusesWhatIsWrong) {
  const auto refused = [](const std::string& file, ErrorCode code, std::string_view part) {
    expect_error(parse_sentencepiece_model(file), code, part);
  };
  refused("", ErrorCode::kCorrupt, "no pieces");
  refused(std::string(20, '\xFF'), ErrorCode::kCorrupt, "past the end");
  refused("\x0A\x7F", ErrorCode::kCorrupt, "past the end");
  refused("\x0B", ErrorCode::kCorrupt, "wire type 3");
  refused(piece("a", 7, 0), ErrorCode::kCorrupt, "type 7");
  refused(piece("a", 1, 0) + with_length(2, number(3, 4)), ErrorCode::kUnsupported, "model type 4");
  refused(piece("a", 1, 0) + with_length(3, with_length(2, "map")), ErrorCode::kUnsupported, "map");
  SentencePieceModel model = pieces(SentencePieceModel::Algorithm::kBpe);
  model.pieces[5].score = std::numeric_limits<float>::quiet_NaN();
  expect_error(make_sentencepiece_tokenizer(model, {}), ErrorCode::kCorrupt, "not finite");
  model = pieces(SentencePieceModel::Algorithm::kBpe);
  model.pieces[5].content = "b";
  expect_error(make_sentencepiece_tokenizer(model, {}), ErrorCode::kCorrupt, "given two ids");
}

TEST(Llama2cVocabulary, RefusesWhatIsWrong) {
  expect_error(parse_llama2c_vocabulary("abc"), ErrorCode::kCorrupt, "too few");
  expect_error(parse_llama2c_vocabulary(std::string(8, '\0')), ErrorCode::kCorrupt, "ends inside");
  expect_error(parse_llama2c_vocabulary(std::string(8, '\0') + "\xFF\xFF\xFF\xFF"),
               ErrorCode::kCorrupt, "-1 bytes");
  expect_error(parse_llama2c_vocabulary(std::string(12, '\0')), ErrorCode::kCorrupt, "<unk>");
}

TEST(RankFile, ReadsAndRefuses) {
  const auto tokenizer = parse_rank_file("YQ== 0\nYg== 1\nYWI= 2\n", "qwen", {});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ((*tokenizer)->encode("abb<|endoftext|>"), (Tokens{2, 1, 3}));
  EXPECT_EQ((*tokenizer)->end_tokens(), (Tokens{3, 5}));
  EXPECT_TRUE(looks_like_rank_file("YQ== 0\n"));
  EXPECT_FALSE(looks_like_rank_file("\x0A\x05\x0A\x03<s>"));
  const auto refused = [](std::string_view text, ErrorCode code, std::string_view part) {
    expect_error(parse_rank_file(text, "qwen", {}), code, part);
  };
  refused("", ErrorCode::kCorrupt, "no ranks");
  refused("YQ== 0\nYQ= 1\n", ErrorCode::kCorrupt, "line 2");
  refused("YQ== x\n", ErrorCode::kCorrupt, "line 1");
  refused("YQ== 0\nYg== 0\n", ErrorCode::kCorrupt, "line 2: token id 0");
  refused("YQ== 0\nYQ== 1\n", ErrorCode::kCorrupt, "two ids");
  refused("YQ== 99999999999\n", ErrorCode::kCorrupt, "outside");
  expect_error(parse_rank_file("YQ== 0\n", "mine", {}), ErrorCode::kUnsupported, "cl100k_base");
}

TEST(VocabAndMerges, ReadsAndRefuses) {
  const char* vocab = R"({"a":0,"b":1,"ab":2,"<|endoftext|>":3})";
  const auto tokenizer = parse_vocab_and_merges(vocab, "#version: 0.2\na b\n", {});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ((*tokenizer)->encode("ab<|endoftext|>"), (Tokens{2, 3}));
  EXPECT_EQ((*tokenizer)->end_tokens(), Tokens{3});
  EXPECT_FALSE((*tokenizer)->adds_bos());
  expect_error(parse_vocab_and_merges("[]", "", {}), ErrorCode::kCorrupt, "vocab.json");
  expect_error(parse_vocab_and_merges(vocab, "b c\n", {}), ErrorCode::kCorrupt, "merges.txt");
}

class FakeGguf final : public GgufFile {
 public:
  using Metadata = std::map<std::string, GgufValue, std::less<>>;
  explicit FakeGguf(Metadata metadata) : metadata_(std::move(metadata)) {}

  const Metadata& metadata() const override { return metadata_; }
  std::span<const std::byte> metadata_bytes() const override { return {}; }
  const fs::path& path() const override { return path_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view) const override { return nullptr; }
  Result<Matrix> read(std::string_view) const override { return Error(ErrorCode::kNotFound, ""); }
  Result<Matrix> read_rows(std::string_view, int64_t, int64_t) const override {
    return Error(ErrorCode::kNotFound, "");
  }

 private:
  Metadata metadata_;
  fs::path path_ = "fake.gguf";
  std::vector<TensorInfo> tensors_;
};

FakeGguf::Metadata byte_level_metadata() {
  using Strings = std::vector<std::string>;
  return {{"tokenizer.ggml.model", std::string("gpt2")},
          {"tokenizer.ggml.pre", std::string("llama-bpe")},
          {"tokenizer.ggml.tokens", Strings{"a", "b", "ab", "<s>", "<|eot_id|>", "1"}},
          {"tokenizer.ggml.token_type", std::vector<int64_t>{1, 1, 1, 3, 3, 1}},
          {"tokenizer.ggml.merges", Strings{"a b"}},
          {"tokenizer.ggml.bos_token_id", int64_t{3}}};
}

TEST(GgufTokenizer, ByteLevel) {
  const auto tokenizer = open_tokenizer(FakeGguf(byte_level_metadata()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ((*tokenizer)->encode("<s>ab11"), (Tokens{3, 2, 5, 5}));
  EXPECT_EQ((*tokenizer)->bos(), 3);
  EXPECT_TRUE((*tokenizer)->adds_bos());
  EXPECT_EQ((*tokenizer)->end_tokens(), Tokens{4});
}

TEST(GgufTokenizer, SentencePiece) {
  using Strings = std::vector<std::string>;
  const FakeGguf file({{"tokenizer.ggml.model", std::string("llama")},
                       {"tokenizer.ggml.tokens", Strings{"<unk>", "<s>", "▁", "a", "▁a"}},
                       {"tokenizer.ggml.scores", std::vector<double>{0, 0, -3, -2, -1}},
                       {"tokenizer.ggml.token_type", std::vector<int64_t>{2, 3, 1, 1, 1}},
                       {"tokenizer.ggml.bos_token_id", int64_t{1}}});
  const auto tokenizer = open_tokenizer(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ((*tokenizer)->encode("a  aa?"), (Tokens{4, 2, 4, 3, 0}));
  EXPECT_EQ((*tokenizer)->decode(Tokens{4, 2, 4}), "a  a");
}

TEST(GgufTokenizer, RefusesWhatIsWrong) {
  const auto refused = [](const char* key, GgufValue value, ErrorCode code, const char* part) {
    auto metadata = byte_level_metadata();
    metadata[key] = std::move(value);
    const auto tokenizer = open_tokenizer(FakeGguf(std::move(metadata)));
    expect_error(tokenizer, code, part);
    EXPECT_TRUE(tokenizer.error().message().starts_with("fake.gguf: "));
  };
  using Strings = std::vector<std::string>;
  refused("tokenizer.ggml.model", std::string("bert"), ErrorCode::kUnsupported, "'bert'; known");
  refused("tokenizer.ggml.pre", std::string("mine"), ErrorCode::kUnsupported, "smollm");
  refused("tokenizer.ggml.tokens", int64_t{1}, ErrorCode::kNotFound, "tokenizer.ggml.tokens");
  refused("tokenizer.ggml.token_type", std::vector<int64_t>{1}, ErrorCode::kCorrupt, "1 entries");
  refused("tokenizer.ggml.token_type", std::vector<int64_t>{1, 1, 1, 1, 1, 9}, ErrorCode::kCorrupt,
          "is 9");
  refused("tokenizer.ggml.merges", Strings{"a c"}, ErrorCode::kCorrupt, "merge 0");
  refused("tokenizer.ggml.bos_token_id", int64_t{1} << 31, ErrorCode::kCorrupt, "bos_token_id");
  refused("tokenizer.ggml.bos_token_id", int64_t{77}, ErrorCode::kCorrupt, "77");
}

class TokenizerFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("quarot-tokenizer-{}", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const char* name, std::string_view text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  fs::path folder_;
};

TEST_F(TokenizerFolder, ReadsWhatStandsBeside) {
  write("tokenizer.json", file_with(R"("added_tokens":[{"id":3,"content":"<e>","special":true}])"));
  write("tokenizer_config.json",
        R"({"bos_token":{"content":"a"},"eos_token":"<e>","add_bos_token":true,"chat_template":[
           {"name":"tool_use","template":"T"},{"name":"default","template":"D"}]})");
  write("generation_config.json", R"({"eos_token_id":[3,1]})");
  auto tokenizer = open_tokenizer(folder_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ((*tokenizer)->bos(), 0);
  EXPECT_TRUE((*tokenizer)->adds_bos());
  EXPECT_EQ((*tokenizer)->end_tokens(), (Tokens{3, 1}));
  EXPECT_EQ((*tokenizer)->chat_template(), "D");
  write("chat_template.jinja", "J");
  EXPECT_EQ((*open_tokenizer(folder_))->chat_template(), "J");
  write("generation_config.json", R"({"eos_token_id":2147483648})");
  expect_error(open_tokenizer(folder_), ErrorCode::kCorrupt, "generation_config.json");
  write("generation_config.json", R"({"eos_token_id":9})");
  expect_error(open_tokenizer(folder_), ErrorCode::kCorrupt, "tokenizer.json: the EOS id 9");
}

TEST_F(TokenizerFolder, SaysWhatIsNotThere) {
  expect_error(open_tokenizer(folder_), ErrorCode::kNotFound, "no tokenizer in this folder");
  expect_error(open_tokenizer(folder_ / "none"), ErrorCode::kNotFound, "none");
  write("weights.bin", "x");
  expect_error(open_tokenizer(folder_ / "weights.bin"), ErrorCode::kUnsupported, "known: *.json");
}

}  // namespace
}  // namespace quarot
