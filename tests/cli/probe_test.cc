// quarot probe of models on disk: strangers' names in its report, and its memory.
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/browser.h"
#include "support/checkpoint.h"
#include "support/program.h"
#include "support/sanitizer.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Outcome;
using testing::run;

class ProbeProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("quarot-probe-") + info->name() + "-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
};

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Breaks out of a title, a text, an attribute, a script; turns the direction of text; hides.
const std::string kHostile =
    "</title></script><script>window.broken=1</script><img src=x onerror=window.broken=2>\"'"
    "`${window.broken=3}<!--&lt;\u202E\u2066\u200B\u0007\u0085";

// Letters, and tokens that a stranger chose.
json hostile_tokenizer() {
  json vocab;
  for (char letter = 'a'; letter <= 'z'; ++letter) vocab[std::string(1, letter)] = letter - 'a';
  json added = json::array();
  for (const std::string& content : {kHostile, kHostile + std::string(800, 'w'), "\n" + kHostile})
    added.push_back({{"id", vocab.size() + added.size()}, {"content", content}});
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}},
          {"added_tokens", added}};
}

TEST_F(ProbeProgram, HostileNamesStayText) {
  // A slash makes a folder of a name: both are hostile then.
  const fs::path model =
      folder_ / ("<img src=x onerror=window.broken=4>\"'\u202E" + std::string(150, 'w') + "<") /
      "script>window.broken=5<" / "script>\n&amp;";
  const json config = testing::config_json({{"vocab_size", 32},
                                            {"tie_word_embeddings", true},
                                            {"_name_or_path", kHostile},
                                            {"architectures", json::array({kHostile})},
                                            {"torch_dtype", kHostile},
                                            {kHostile, kHostile}});
  testing::write_random_checkpoint(model, config, {kHostile, "model.layers.0." + kHostile});
  std::ofstream(model / "tokenizer.json") << hostile_tokenizer();
  const fs::path text = model / "\u2067<b>text'.txt";
  {
    std::ofstream file(text);
    for (int i = 0; i < 20; ++i)
      file << "abc" << kHostile << "def\n"
           << kHostile << "ghi" << kHostile << std::string(800, 'w');
  }
  const Outcome outcome = run({"probe", model, "--text", text, "-o", folder_ / "report.html",
                               "--figures", folder_ / "figures"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");  // no progress in a pipe
  const std::string html = contents(folder_ / "report.html");
  for (const char* alive :
       {"<img", "<b>", "<script>window", "\u202E", "\u2066", "\u2067", "\u200B", "\u0085", "\x07"})
    EXPECT_EQ(html.find(alive), std::string::npos) << alive;
  for (const char* shown : {"&lt;/title&gt;&lt;/script&gt;", "[U+202E]", "[U+2067]"})
    EXPECT_NE(html.find(shown), std::string::npos) << shown;
  EXPECT_EQ(html.find(std::string(200, 'w')), std::string::npos);  // what is long is cut
  for (const auto& figure : fs::directory_iterator(folder_ / "figures"))
    EXPECT_EQ(contents(figure).find("<img"), std::string::npos) << figure;

  if (testing::chromium().empty()) GTEST_SKIP() << "no chromium here";
  const std::string title = testing::title_in_browser(html, R"(
    const named = document.querySelector('h1').textContent.includes('<\/script>window.broken=5');
    const rows = [...document.querySelectorAll('td')].filter(cell => cell.textContent.includes('<\/title>'));
    document.querySelectorAll('details').forEach(detail => { detail.open = true; });
    const narrow = document.documentElement.scrollWidth <= innerWidth;
    const drawn = [...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().height > 50).length;
    document.title = `verdict ${document.images.length} ${document.scripts.length} ${named} ${rows.length > 0} ${narrow} ${drawn} ${window.broken} ${window.failed}`;
  )");
  EXPECT_EQ(title, "verdict 0 3 true true true 10 undefined undefined");
}

// The norms of a damaged model are no numbers; nothing that the probe could say of it would be
// true.
TEST_F(ProbeProgram, AModelOfNoNumbersIsRefused) {
  QUAROT_NEEDS(testing::data_folder());
  for (const char* name : {"stories260K.bin", "tok512.bin"})
    fs::copy_file(*testing::data_folder() / "models" / "stories260k" / name, folder_ / name);
  {
    std::fstream file(folder_ / "stories260K.bin", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(28);  // behind the header is the embedding
    const std::vector<float> infinities(512 * 64, std::numeric_limits<float>::infinity());
    file.write(reinterpret_cast<const char*>(infinities.data()),
               static_cast<std::streamsize>(infinities.size() * sizeof(float)));
  }
  std::ofstream(folder_ / "text.txt") << "a";
  for (const char* option : {"--quiet", "--full"}) {
    const Outcome outcome =
        run({"probe", folder_ / "stories260K.bin", "--text", folder_ / "text.txt", option});
    EXPECT_EQ(outcome.status, 1) << option;
    EXPECT_NE(outcome.err.find("finite"), std::string::npos) << outcome.err;
  }
}

// Windows of 127 tokens leave room for one more, which predicts nothing and is not counted.
TEST_F(ProbeProgram, CountsWhatItAttributes) {
  QUAROT_NEEDS(testing::data_folder());
  std::ofstream(folder_ / "text.txt") << std::string(2000, 'a');
  const fs::path model = *testing::data_folder() / "models" / "stories260k" / "stories260K.bin";
  const Outcome outcome =
      run({"probe", model, "--text", folder_ / "text.txt", "--tokens", "508", "--full", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["attribution"]["tokens"], 127);
}

// What cannot be written is said before anything is read, let alone measured.
TEST_F(ProbeProgram, OutputsAreCheckedFirst) {
  fs::create_directory(folder_ / "taken");
  const std::string taken = folder_ / "taken";
  for (const char* option : {"-o", "--csv"}) {
    const Outcome outcome = run({"probe", folder_ / "no-model", option, taken});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_NE(outcome.err.find("expected a regular file"), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

// Each layer more takes its float32 weights and no more: whatever else the probe holds is of one
// layer, or of the tokens.
TEST_F(ProbeProgram, HoldsTheFloatModelAndLittleElse) {
  QUAROT_NEEDS(testing::data_folder());
  if (testing::under_sanitizer()) GTEST_SKIP() << "a sanitizer keeps what is freed";
  constexpr int64_t kHidden = 256;
  constexpr int64_t kFfn = 1024;
  constexpr int64_t kLayerBytes = 4 * (4 * kHidden * kHidden + 3 * kHidden * kFfn);
  const auto peak_of = [&](int64_t layers) {
    const fs::path model = folder_ / std::to_string(layers);
    testing::write_random_checkpoint(model, testing::config_json({{"hidden_size", kHidden},
                                                                  {"intermediate_size", kFfn},
                                                                  {"num_hidden_layers", layers},
                                                                  {"num_attention_heads", 4},
                                                                  {"num_key_value_heads", 4},
                                                                  {"head_dim", 64},
                                                                  {"vocab_size", 512},
                                                                  {"tie_word_embeddings", true}}));
    fs::copy_file(*testing::data_folder() / "models" / "stories260k" / "tok512.bin",
                  model / "tokenizer.bin");
    const Outcome outcome =
        run({"probe", model, "--full", "--tokens", "64", "--w-clip", "none", "--json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out)["peak_bytes"].get<int64_t>();
  };
  EXPECT_LT(peak_of(24) - peak_of(4), 20 * kLayerBytes + 2 * kLayerBytes);
}

// The largest thing in a small model is its vocabulary, which a rotation unties: still no more than
// the float model and 1 GiB.
TEST_F(ProbeProgram, HoldsALargeVocabulary) {
  QUAROT_NEEDS(testing::data_folder());
  if (testing::under_sanitizer()) GTEST_SKIP() << "a sanitizer keeps what is freed";
  constexpr int64_t kHidden = 384;
  constexpr int64_t kVocab = 200000;
  testing::write_random_checkpoint(folder_ / "model",
                                   testing::config_json({{"hidden_size", kHidden},
                                                         {"intermediate_size", kHidden},
                                                         {"num_hidden_layers", 1},
                                                         {"num_attention_heads", 6},
                                                         {"num_key_value_heads", 6},
                                                         {"head_dim", 64},
                                                         {"vocab_size", kVocab},
                                                         {"tie_word_embeddings", true}}));
  fs::copy_file(*testing::data_folder() / "models" / "stories260k" / "tok512.bin",
                folder_ / "model" / "tokenizer.bin");
  std::ofstream(folder_ / "text.txt") << std::string(2000, 'a');
  const Outcome outcome =
      run({"probe", folder_ / "model", "--text", folder_ / "text.txt", "--full", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  constexpr int64_t kFloatModel = 4 * (kVocab * kHidden + 7 * kHidden * kHidden + 3 * kHidden);
  EXPECT_LT(json::parse(outcome.out)["peak_bytes"].get<int64_t>(), kFloatModel + (1LL << 30));
}

}  // namespace
}  // namespace quarot
