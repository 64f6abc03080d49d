// quarot study, and zero-shot tasks in eval and compare, as a script sees them.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "support/data.h"
#include "support/program.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Arguments;
using testing::Child;
using testing::data_folder;
using testing::Outcome;
using testing::run;

class StudyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    QUAROT_NEEDS(data_folder());
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("quarot-study-") + info->name() + "-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 40; ++i)
      text << "Once upon a time, there was a little girl named Lily. She had " << i << " balls.\n";
    std::ofstream(folder_ / "pets.jsonl")
        << R"({"pairs": [["She had a", " dog"], ["She had a", " zzz"]], "norm": [3, 3], "gold": 0})"
           "\n"
           R"({"pairs": [["The", " xq"], ["The", " sun"]], "norm": [2, 3], "gold": 0})"
           "\n";
    std::ofstream(folder_ / "words.jsonl") << R"({"pairs": [["Once upon a", " time"]]})";
  }
  void TearDown() override { fs::remove_all(folder_); }

  Arguments command(const std::string& name, const Arguments& more) const {
    Arguments arguments = {name, *data_folder() / "models" / "stories260k" / "stories260K.bin"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Arguments study(const std::string& table, const Arguments& more = {},
                  const std::string& results = "results") const {
    Arguments arguments = {"--window", "128", "--max-windows", "3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return study_windows(table, arguments, results);
  }
  Arguments study_windows(const std::string& table, const Arguments& more,
                          const std::string& results = "results") const {
    Arguments arguments =
        command("study", {"--table", table, "--text", folder_ / "text.txt", "--results",
                          folder_ / results, "--calibration", folder_ / "text.txt"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static json json_of(const Arguments& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  }

  // When each result was written.
  std::map<std::string, fs::file_time_type> records(const std::string& results = "results") const {
    std::map<std::string, fs::file_time_type> times;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder_ / results, none)) {
      if (entry.path().extension() == ".json")
        times[entry.path().filename()] = entry.last_write_time();
    }
    return times;
  }

  fs::path folder_;
};

TEST_F(StudyTest, EvalMeasuresTasksWithAndWithoutText) {
  const Arguments tasks = {"--tasks", folder_ / "pets.jsonl", folder_ / "words.jsonl"};
  const json alone = json_of(command("eval", {"--json", tasks[0], tasks[1], tasks[2]}));
  EXPECT_FALSE(alone.contains("perplexity"));
  const json& pets = alone["tasks"]["pets"];
  EXPECT_EQ(pets["items"], 2);
  EXPECT_EQ(pets["correct"], (json{1, 0}));
  EXPECT_EQ(pets["acc"], 0.5);
  EXPECT_EQ(pets["standard_error"], 0.5);
  EXPECT_TRUE(pets["acc_norm"].is_number());
  EXPECT_TRUE(pets["ppl"].is_null());
  const json& words = alone["tasks"]["words"];
  EXPECT_EQ(words["acc"], 1);
  EXPECT_TRUE(words["acc_norm"].is_null());
  EXPECT_GT(words["ppl"], 1);
  EXPECT_LT(words["ppl"], 1.5);

  const json both =
      json_of(command("eval", {"--json", "--text", folder_ / "text.txt", "--window", "128",
                               tasks[0], tasks[1], tasks[2], "--max-items", "1"}));
  EXPECT_TRUE(both.contains("perplexity"));
  EXPECT_EQ(both["tasks"]["pets"]["items"], 1);
  const Outcome text = run(command("eval", {tasks[0], tasks[1], tasks[2]}));
  EXPECT_NE(text.out.find("50.00 % ± 50.00"), std::string::npos) << text.out;
}

TEST_F(StudyTest, TaskFilesAreAtFaultByLine) {
  std::ofstream(folder_ / "bad.jsonl") << "{\"pairs\": [[\"a\", \" b\"]]}\n{\"pairs\": 1}\n";
  const Outcome bad = run(command("eval", {"--tasks", folder_ / "bad.jsonl"}));
  EXPECT_EQ(bad.status, 1);
  EXPECT_NE(bad.err.find("bad.jsonl:2: \"pairs\""), std::string::npos) << bad.err;
  const Outcome twice =
      run(command("eval", {"--tasks", folder_ / "pets.jsonl", folder_ / "pets.jsonl"}));
  EXPECT_EQ(twice.status, 1);
  EXPECT_NE(twice.err.find("a second task of the name pets"), std::string::npos) << twice.err;
  EXPECT_EQ(run(command("eval", {})).status, 2);
}

TEST_F(StudyTest, CompareMeasuresTasks) {
  const Arguments compare =
      command("compare", {"--tasks", folder_ / "pets.jsonl", "--recipes", "quarot"});
  Arguments as_json = compare;
  as_json.emplace_back("--json");
  const json result = json_of(as_json);
  ASSERT_EQ(result["results"].size(), 2U);
  EXPECT_EQ(result["results"][0]["tasks"]["pets"]["acc"], 0.5);
  EXPECT_FALSE(result["results"][0].contains("perplexity"));
  EXPECT_NE(run(compare).out.find("pets"), std::string::npos);
}

TEST_F(StudyTest, RowsSayWhatTheyAreAndHowTheyDifferFromFloat) {
  const json result = json_of(study("rotations", {"--json"}));
  ASSERT_EQ(result["tables"].size(), 1U);
  const json& table = result["tables"][0];
  EXPECT_EQ(table["table"], "rotations");
  const json& rows = table["rows"];
  ASSERT_EQ(rows.size(), 11U);
  EXPECT_EQ(rows[0]["label"], "float");
  EXPECT_EQ(rows[0]["loss_difference"]["mean"], 0);
  EXPECT_EQ(rows[2]["label"], "without R1");
  EXPECT_EQ(rows[2]["results"][0]["recipe"]["transforms"]["residual"], false);
  EXPECT_EQ(rows[2]["results"][0]["recipe"]["transforms"]["ffn"], true);
  EXPECT_EQ(rows[1]["bits"], "W4A4KV4");
  EXPECT_EQ(rows[1]["kept_channels"], 0);
  EXPECT_EQ(rows[1]["cache_bits"], 9);  // 4, and 40 for each head vector of 8
  const auto nll = [&](int row) {
    return rows[row]["results"][0]["nll"].get<std::vector<double>>();
  };
  ASSERT_EQ(nll(1).size(), 3U);
  const double difference =
      (nll(1)[0] + nll(1)[1] + nll(1)[2] - nll(0)[0] - nll(0)[1] - nll(0)[2]) / 3;
  EXPECT_NEAR(rows[1]["loss_difference"]["mean"].get<double>(), difference, 1e-12);
  EXPECT_GT(rows[1]["loss_difference"]["standard_error"], 0);
}

TEST_F(StudyTest, PrintsOneTableInEveryFormat) {
  const Outcome terminal = run(study("main"));
  ASSERT_EQ(terminal.status, 0) << terminal.err;
  for (const char* part : {"QuaRot GPTQ", "perplexity", "lowest loss: ", "paired by window",
                           "381 tokens in 3 windows", "calibrated on "}) {
    EXPECT_NE(terminal.out.find(part), std::string::npos) << part << terminal.out;
  }
  const auto times = records();
  const Outcome markdown = run(study("main", {"--format", "markdown"}));
  EXPECT_NE(markdown.out.find("| balanced RTN | W4A4KV4 | 0 | "), std::string::npos);
  const Outcome csv = run(study("main", {"--format", "csv"}));
  EXPECT_TRUE(csv.out.starts_with("row,bits,kept,W,A,KV,perplexity,±,Δ loss,±\nfloat,W16A16KV16,"));
  EXPECT_EQ(records(), times);  // nothing was measured again
}

TEST_F(StudyTest, SeedsAreMeasuredOnlyWhereTheyCount) {
  const json table =
      json_of(study("basis", {"--json", "--seeds", "2", "--seed", "5"}))["tables"][0];
  const json& rows = table["rows"];
  EXPECT_EQ(rows[0]["results"].size(), 1U);
  EXPECT_EQ(rows[2]["results"].size(), 1U);  // a Hadamard without signs
  ASSERT_EQ(rows[1]["results"].size(), 2U);
  EXPECT_EQ(rows[1]["results"][1]["seed"], 6);
  EXPECT_EQ(rows[1]["results"][1]["recipe"]["transforms"]["seed"], 6);
  const double a = rows[1]["results"][0]["perplexity"];
  const double b = rows[1]["results"][1]["perplexity"];
  EXPECT_NE(a, b);
  EXPECT_NEAR(rows[1]["perplexity"].get<double>(), (a + b) / 2, 1e-9);
  EXPECT_NEAR(rows[1]["standard_deviation"].get<double>(), std::abs(a - b) / std::sqrt(2), 1e-9);
}

TEST_F(StudyTest, SaysWhatItLeavesOutAndThatItIsQuick) {
  const json table = json_of(study("groups", {"--json"}))["tables"][0];
  EXPECT_EQ(table["rows"].size(), 4U);  // 172 is divided by none of the groups
  EXPECT_EQ(table["left_out"].size(), 12U);
  EXPECT_NE(table["left_out"][0].get<std::string>().find("groups of 256 do not divide"),
            std::string::npos);
  const Outcome quick = run(study("groups", {"--quick"}));
  EXPECT_NE(quick.out.find("quick: at most 3 windows"), std::string::npos) << quick.out;
  EXPECT_NE(quick.out.find("left out: QuaRot GPTQ, groups of 256"), std::string::npos);
}

// Every row names a recipe, changes fields that exist, and has a label of its own.
TEST_F(StudyTest, EveryTableRuns) {
  const json tables = json_of(
      command("study", {"--table", "all", "--text", folder_ / "text.txt", "--tasks",
                        folder_ / "pets.jsonl", "--window", "32", "--max-windows", "1", "--seeds",
                        "1", "--calibration-tokens", "256", "--calibration", folder_ / "text.txt",
                        "--results", folder_ / "results", "--json"}))["tables"];
  ASSERT_EQ(tables.size(), 14U);
  for (const json& table : tables) {
    std::set<std::string> labels;
    for (const json& row : table["rows"]) {
      EXPECT_TRUE(labels.insert(row["label"]).second) << table["table"] << row["label"];
      EXPECT_EQ(row["results"].size(), 1U);
      EXPECT_EQ(row["results"][0].contains("tasks"), table["table"] == "zero-shot");
    }
    EXPECT_GE(labels.size(), 3U) << table["table"];
  }
}

// Columns stay columns, lines lines, and no name reaches the terminal as an escape sequence.
TEST_F(StudyTest, NamesDoNotBreakATable) {
  const fs::path odd = folder_ / "a|b\x1b[31m\n,c.jsonl";
  fs::copy_file(folder_ / "pets.jsonl", odd);
  const Arguments study =
      command("study", {"--table", "rivals,zero-shot", "--text", folder_ / "text.txt", "--tasks",
                        odd, "--window", "32", "--max-windows", "2", "--calibration-tokens", "256",
                        "--calibration", folder_ / "text.txt", "--results", folder_ / "results"});
  for (const std::string format : {"terminal", "markdown", "csv"}) {
    Arguments arguments = study;
    arguments.insert(arguments.end(), {"--format", format});
    const Outcome outcome = run(arguments);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
    EXPECT_NE(outcome.out.find("b\\x1b[31m\\x0a,c"), std::string::npos) << outcome.out;
    if (format != "markdown") continue;
    EXPECT_NE(outcome.out.find("| LLM.int8() | W8A8KV16 | \\|x\\| > 6 | "), std::string::npos);
    EXPECT_NE(outcome.out.find("| a\\|b\\x1b"), std::string::npos);
  }
  const Outcome eval = run(command("eval", {"--tasks", odd}));
  EXPECT_EQ(eval.out.find('\x1b'), std::string::npos);
}

// Of one window nothing is known about how others would differ.
TEST_F(StudyTest, OneWindowHasNoStandardError) {
  const Arguments one = {"--window", "128", "--max-windows", "1"};
  const Outcome text = run(study_windows("rtn", one));
  ASSERT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("± unknown nats a token"), std::string::npos) << text.out;
  const auto times = records();
  const json tables =
      json_of(study_windows("rtn", {one[0], one[1], one[2], one[3], "--json"}))["tables"];
  const json& row = tables[0]["rows"][1];
  EXPECT_EQ(records(), times);  // it was kept all the same
  EXPECT_TRUE(row["results"][0]["standard_error"].is_null());
  EXPECT_TRUE(row["loss_difference"]["standard_error"].is_null());
  const Outcome eval = run(command("eval", {"--text", folder_ / "text.txt", "--window", "128",
                                            "--max-windows", "1", "--against", "float"}));
  EXPECT_NE(eval.out.find("± unknown\n"), std::string::npos) << eval.out;
}

TEST_F(StudyTest, WindowsAreNoLongerThanTheContext) {
  const json fits = json_of(command("eval", {"--json", "--text", folder_ / "text.txt"}));
  EXPECT_EQ(fits["window"], 512);
  const Outcome outcome = run(study_windows("main", {"--window", "600"}));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("context is 512: choose --window 512 or less"), std::string::npos)
      << outcome.err;
}

// Its "float" row would be of a quantised model.
TEST_F(StudyTest, RefusesAModelThatCarriesARecipe) {
  const fs::path made = folder_ / "made";
  ASSERT_EQ(run(command("quantize", {"-o", made, "--recipe", "quarot"})).status, 0);
  const Outcome outcome = run({"study", made, "--text", folder_ / "text.txt", "--window", "128",
                               "--results", folder_ / "results"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("give the original model"), std::string::npos) << outcome.err;
  EXPECT_TRUE(records().empty());
}

TEST_F(StudyTest, WrongUsageIsStatus2) {
  EXPECT_EQ(run(command("study", {})).status, 2);
  EXPECT_EQ(run(command("study", {"--table", "nothing", "--text", "x"})).status, 2);
  const Outcome tasks = run(study("zero-shot"));
  EXPECT_EQ(tasks.status, 2);
  EXPECT_NE(tasks.err.find("--tasks, for the table zero-shot"), std::string::npos) << tasks.err;
}

TEST_F(StudyTest, GoesOnWhereItWasKilled) {
  const json expected = json_of(study("main", {"--json"}, "whole"));
  const Child killed(study("main", {"--json"}));
  for (int i = 0; i < 30000 && records().size() < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  killed.signal(SIGKILL);
  EXPECT_EQ(killed.wait().status, -SIGKILL);
  const auto before = records();
  ASSERT_GE(before.size(), 2U);
  ASSERT_LT(before.size(), expected["tables"][0]["rows"].size());
  const json resumed = json_of(study("main", {"--json"}));
  EXPECT_EQ(resumed["tables"], expected["tables"]);
  for (const auto& [name, time] : before) EXPECT_EQ(records()[name], time) << name;
}

TEST_F(StudyTest, AnInterruptIs130) {
  const Child child(study("cache"));
  for (int i = 0; i < 30000 && records().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  child.signal(SIGINT);
  const Outcome outcome = child.wait();
  EXPECT_EQ(outcome.status, 130);
  EXPECT_EQ(outcome.err, "quarot: interrupted\n");
}

}  // namespace
}  // namespace quarot
