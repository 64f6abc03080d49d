// quarot compare of models that were made of one, as a script sees it.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/hash.h"
#include "support/data.h"
#include "support/program.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Arguments;
using testing::data_folder;
using testing::Outcome;
using testing::run;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

class Compare : public ::testing::Test {
 protected:
  void SetUp() override {
    QUAROT_NEEDS(data_folder());
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("quarot-compare-") + info->name() + "-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    const fs::path stories = *data_folder() / "models" / "stories260k";
    for (const char* file : {"stories260K.bin", "tok512.bin"})
      fs::copy_file(stories / file, folder_ / file);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 40; ++i)
      text << "Once upon a time, there was a little girl named Lily. She had " << i << " balls.\n";
    std::ofstream(folder_ / "words.jsonl") << R"({"pairs": [["Once upon a", " time"]]})";
  }
  void TearDown() override { fs::remove_all(folder_); }

  void quantize(const std::string& recipe, const Arguments& more = {}) const {
    Arguments arguments = {"quantize", original(), "-o",      (folder_ / recipe).string(),
                           "--recipe", recipe,     "--quiet", "--calibration",
                           text()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }

  std::string original() const { return (folder_ / "stories260K.bin").string(); }
  std::string text() const { return (folder_ / "text.txt").string(); }
  std::string artifact(const std::string& name) const { return (folder_ / name).string(); }

  Arguments measured(Arguments arguments) const {
    arguments.insert(arguments.end(), {"--text", text(), "--window", "128"});
    return arguments;
  }
  static json json_of(Arguments arguments) {
    arguments.emplace_back("--json");
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  }

  fs::path folder_;
};

// Whatever the order they are given in, all are measured against the float model, each as eval
// measures it alone.
TEST_F(Compare, PutsModelsOfOneSideBySide) {
  quantize("quarot");
  quantize("balanced", {"--a-bits", "8", "--head-bits", "8", "--embedding-bits", "8"});
  const json result = json_of(measured({"compare", artifact("quarot"), artifact("balanced"),
                                        original(), "--tasks", artifact("words.jsonl")}));
  EXPECT_EQ(result["against"], "float");
  const json& rows = result["results"];
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0]["model"], original());
  EXPECT_EQ(rows[0]["kl"], 0);
  EXPECT_EQ(rows[0]["weight_bits"], 16);
  EXPECT_EQ(rows[1]["bits"], "W4A4KV4");
  EXPECT_EQ(rows[2]["bits"], "W4A8KV4E8H8");
  for (const size_t i : {1U, 2U}) {
    const json& row = rows[i];
    const std::string model = row["model"];
    EXPECT_TRUE(row["on_disk"]);
    EXPECT_EQ(row["bytes"], json_of({"inspect", model})["bytes"]["stored"]);
    EXPECT_GT(row["kl"], 0);
    EXPECT_LT(row["weight_bits"], 5);
    EXPECT_EQ(row["tasks"]["words"]["items"], 1);
    EXPECT_EQ(row["nll"], json_of(measured({"eval", model}))["nll"]);
    const double gap = mean(row["nll"]) - mean(rows[0]["nll"]);
    EXPECT_NEAR(row["loss_difference"]["mean"], gap, 1e-9);
  }
  EXPECT_GT(rows[2]["activation_bits"], rows[1]["activation_bits"]);

  const json& pairs = result["loss_differences"];
  ASSERT_EQ(pairs.size(), 3U);  // 1 from 0, 2 from 0, 2 from 1
  EXPECT_EQ(pairs[2]["row"], 2);
  EXPECT_EQ(pairs[2]["from"], 1);
  EXPECT_NEAR(pairs[2]["mean"], mean(rows[2]["nll"]) - mean(rows[1]["nll"]), 1e-9);
  EXPECT_GT(pairs[2]["standard_error"], 0);
  EXPECT_LT(pairs[2]["standard_error"], rows[2]["standard_error"]);
}

// An artifact is the recipe it was made by: the same losses, the same bits; the size that a recipe
// would have is the size that it has, but for norms.
TEST_F(Compare, RecipesStandBesideArtifacts) {
  quantize("quarot", {"--dtype", "f32"});
  quantize("naive");
  const json result = json_of(measured(
      {"compare", original(), artifact("quarot"), artifact("naive"), "--recipes", "quarot,naive"}));
  const json& rows = result["results"];
  ASSERT_EQ(rows.size(), 5U);
  for (const size_t i : {1U, 2U}) {
    const json& artifact = rows[i];
    const json& recipe = rows[i + 2];
    EXPECT_FALSE(recipe["on_disk"]);
    for (const char* key : {"bits", "weight_bits", "activation_bits", "cache_bits"})
      EXPECT_EQ(artifact[key], recipe[key]) << key;
  }
  EXPECT_NEAR(rows[1]["kl"], rows[3]["kl"], 1e-6);
  EXPECT_NEAR(rows[4]["bytes"].get<double>() / rows[2]["bytes"].get<double>(), 1, 0.05);
}

TEST_F(Compare, FindsTheFloatModelOrTakesTheFirst) {
  quantize("quarot");
  quantize("naive");
  const Arguments both = measured({"compare", artifact("naive"), artifact("quarot")});
  const json found = json_of(both);
  EXPECT_EQ(found["against"], "float");
  ASSERT_EQ(found["results"].size(), 3U);
  EXPECT_EQ(found["results"][0]["model"], original());
  EXPECT_NE(run(both).out.find("the float model was found: " + original()), std::string::npos);

  fs::remove(original());
  const json alone = json_of(both);
  EXPECT_EQ(alone["against"], "first");
  ASSERT_EQ(alone["results"].size(), 2U);
  EXPECT_EQ(alone["results"][0]["model"], artifact("naive"));
  EXPECT_EQ(alone["results"][0]["kl"], 0);
  EXPECT_EQ(alone["results"][0]["top1_agreement"], 1);
  EXPECT_GT(alone["results"][1]["kl"], 0);
  EXPECT_EQ(alone["results"][1]["nll"], found["results"][2]["nll"]);
  const std::string text = run(both).out;
  EXPECT_NE(text.find("KL to the first"), std::string::npos);
  EXPECT_NE(text.find("no float model was given or found: KL is from naive, the first"),
            std::string::npos);
}

// A manifest that a stranger wrote points at no file outside, and at no other model.
TEST_F(Compare, TakesOnlyTheSourceItselfForTheFloatModel) {
  quantize("quarot");
  fs::create_directories(folder_ / "inner");
  fs::rename(folder_ / "quarot", folder_ / "inner" / "quarot");
  const fs::path manifest = folder_ / "inner" / "quarot" / "quarot.json";
  const json written = json::parse(std::ifstream(manifest));
  const auto against = [&](const json& changes) {
    json changed = written;
    changed.update(changes);
    changed.erase("checksum");
    changed["checksum"] = content_hash(changed.dump());
    std::ofstream(manifest) << changed;
    return json_of(measured({"compare", (folder_ / "inner" / "quarot").string()}))["against"];
  };
  EXPECT_EQ(against({{"source", "../stories260K.bin"}}), "first");
  EXPECT_EQ(against({{"source", original()}}), "first");
  EXPECT_EQ(against({{"source", ".."}}), "first");
  EXPECT_EQ(against({{"source", 7}}), "first");
  for (const char* file : {"stories260K.bin", "tok512.bin"})
    fs::copy_file(folder_ / file, folder_ / "inner" / file);
  EXPECT_EQ(against(json::object()), "float");
  EXPECT_EQ(against({{"source_config", "another's"}}), "first");
}

TEST_F(Compare, SpeedIsOfEachRow) {
  quantize("quarot");
  const json result = json_of(measured({"compare", original(), artifact("quarot"), "--speed"}));
  for (const json& row : result["results"]) {
    EXPECT_GT(row["tokens_per_second"]["pp128"], 0);
    EXPECT_GT(row["tokens_per_second"]["tg32"], 0);
  }
}

// For a pipe: no colours, each row in each of three tables, the lowest loss first in the last.
TEST_F(Compare, TextHasARowOfEachInEveryTable) {
  quantize("quarot");
  const Outcome outcome = run(measured({"compare", artifact("quarot"), original()}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
  std::vector<std::string> lines;
  std::istringstream stream(outcome.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  const auto begins = [&](const std::string& name) {
    return std::ranges::count_if(lines, [&](const auto& line) { return line.starts_with(name); });
  };
  EXPECT_EQ(begins("stories260K.bin  float "), 3);
  EXPECT_EQ(begins("quarot           quarot"), 3);
  const auto ranking = std::ranges::find_if(
      lines, [](const auto& line) { return line.find("from the row above") != line.npos; });
  ASSERT_NE(ranking, lines.end());
  EXPECT_TRUE((ranking + 1)->starts_with("stories260K.bin")) << *(ranking + 1);
}

TEST_F(Compare, EscapeSequencesOfANameAreShown) {
  const fs::path strange = folder_ / "a\x1b[31m\nred.bin";
  fs::copy_file(original(), strange);
  fs::copy_file(text(), folder_ / "t\x1b.txt");
  const Outcome outcome =
      run({"compare", original(), strange, "--text", folder_ / "t\x1b.txt", "--window", "128"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
  EXPECT_NE(outcome.out.find("\na\\x1b[31m\\x0ared.bin  float"), std::string::npos) << outcome.out;
}

TEST_F(Compare, RefusesWhatCannotBeCompared) {
  quantize("quarot");
  const auto expect_refused = [&](const Arguments& arguments, const std::string& message) {
    const Outcome outcome = run(measured(arguments));
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  };
  const Arguments both = {"compare", original(), artifact("quarot")};
  const auto with = [&](Arguments arguments, const Arguments& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  expect_refused(with(both, {"--bits", "W8A8"}), "--recipes");
  expect_refused(with(both, {"--a-clip", "0.8"}), "--recipes");
  expect_refused({"compare", original(), artifact("nothing")}, "nothing: no such file");
  fs::remove(original());
  expect_refused({"compare", artifact("quarot"), "--recipes", "naive"}, "give the original model");

  // Another tokenizer, another shape.
  fs::copy(artifact("quarot"), artifact("other"));
  json config = json::parse(std::ifstream(folder_ / "other" / "config.json"));
  config["num_attention_heads"] = 4;
  std::ofstream(folder_ / "other" / "config.json") << config;
  json manifest = json::parse(std::ifstream(folder_ / "other" / "quarot.json"));
  manifest["files"].erase("config.json");
  manifest.erase("checksum");
  manifest["checksum"] = content_hash(manifest.dump());
  std::ofstream(folder_ / "other" / "quarot.json") << manifest;
  expect_refused({"compare", artifact("quarot"), artifact("other")}, "of different shapes");
}

}  // namespace
}  // namespace quarot
