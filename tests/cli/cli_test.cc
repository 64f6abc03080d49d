// The built program as a script sees it: exit statuses, what goes to which stream, JSON keys,
// interrupts. DESIGN.md, section 10.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <thread>

#include "quarot/version.h"
#include "support/data.h"
#include "support/program.h"
#include "support/sanitizer.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Arguments;
using testing::Child;
using testing::data_folder;
using testing::Outcome;
using testing::run;
using testing::smollm2;

std::set<std::string> keys(const json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

// One line on standard error that says what was expected; nothing on standard output.
void expect_failure(const Arguments& arguments, int status, const std::string& message) {
  const Outcome outcome = run(arguments);
  SCOPED_TRACE(::testing::PrintToString(arguments));
  EXPECT_EQ(outcome.status, status) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("quarot: ")) << outcome.err;
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
}

class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("quarot-cli-") + info->name() + "-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    if (data_folder())
      stories_ = (*data_folder() / "models" / "stories260k" / "stories260K.bin").string();
    text_ = (folder_ / "text.txt").string();
    std::ofstream file(text_);
    for (int i = 0; i < 40; ++i)
      file << "Once upon a time, there was a little girl named Lily. She had " << i << " balls.\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  Arguments eval(const Arguments& more = {}) const {
    Arguments arguments = {"eval", stories_, "--text", text_, "--window", "128"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Arguments generate(const Arguments& more = {}) const {
    Arguments arguments = {"generate", stories_, "--prompt", "Once upon a time", "-n", "12"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  fs::path folder_;
  std::string stories_, text_;
};

constexpr const char* kCommands[] = {"inspect",    "probe",   "rotate",   "quantize",
                                     "eval",       "compare", "generate", "chat",
                                     "completion", "bench",   "study"};

TEST_F(Cli, HelpShowsExamplesOfEveryCommand) {
  const Outcome all = run({"--help"});
  EXPECT_EQ(all.status, 0);
  for (const char* status : {"0 done", "1 the input", "2 wrong usage", "130"})
    EXPECT_NE(all.out.find(status), std::string::npos);
  for (const char* command : kCommands) {
    EXPECT_NE(all.out.find(command), std::string::npos);
    const Outcome help = run({command, "--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_EQ(help.err, "");
    const size_t examples = help.out.find("Examples:");
    ASSERT_NE(examples, std::string::npos) << command;
    EXPECT_NE(help.out.find(std::string("quarot ") + command, examples), std::string::npos);
  }
  const Outcome version = run({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_EQ(version.out, std::string(quarot::version()) + "\n");
}

TEST_F(Cli, WrongUsageIsStatus2) {
  const Outcome bare = run({});
  EXPECT_EQ(bare.status, 2);
  EXPECT_EQ(bare.out, "");
  EXPECT_EQ(bare.err, run({"--help"}).out);
  expect_failure({"dance"}, 2, "no command \"dance\"; there are inspect, probe");
  expect_failure({"inspect"}, 2, "MODEL is required; see quarot inspect --help");
  expect_failure({"inspect", "x", "--device", "cuda"}, 2, "--device");
  expect_failure({"inspect", "x", "--frobnicate"}, 2, "--frobnicate");
  expect_failure({"eval", "x"}, 2, "--text or --tasks is required");
  expect_failure({"eval", "x", "--text", "y", "--window", "many"}, 2, "many");
  expect_failure({"eval", "x", "--text", "y", "--threads", "0"}, 2, "--threads");
  expect_failure({"eval", "x", "--text", "y", "--against", "nothing"}, 2, "float");
  expect_failure({"completion", "fish"}, 2, "bash");
  expect_failure({"eval", "x", "--text", "y", "--seed", "-1"}, 2, "no whole number from 0 to");
  for (const char* number : {"18446744073709551616", "1e9", "0x10", ""}) {
    expect_failure({"eval", "x", "--text", "y", "--seed", number}, 2, "18446744073709551615");
    expect_failure({"eval", "x", "--text", "y", "--window", number}, 2, "9223372036854775807");
  }
  expect_failure({"eval", "x", "--text", "y", "--max-items", "-1"}, 2, "-1, expected 0 or more");
  expect_failure({"probe", "x", "--tokens", "0"}, 2, "0, expected 2 or more");
}

TEST_F(Cli, BadInputIsStatus1AndOneLine) {
  QUAROT_NEEDS(data_folder());
  for (const char* command : {"inspect", "probe", "chat"})
    expect_failure({command, "nothing.gguf"}, 1, "nothing.gguf: no such file");
  expect_failure({"generate", "nothing.gguf", "--prompt", "x"}, 1, "nothing.gguf: no such file");
  expect_failure({"eval", stories_, "--text", "nothing.txt"}, 1, "nothing.txt");
  expect_failure({"inspect", folder_.string()}, 1, "no config.json");
  expect_failure({"inspect", text_}, 1, "expected a Hugging Face folder");
  expect_failure({"inspect", std::string(300, 'x')}, 1, "no such file");
  expect_failure({"inspect", "a\n\x1b[2J"}, 1, "a\\x0a\\x1b[2J: no such file");
  expect_failure({"chat", stories_}, 1, "no chat template");
  std::ofstream(folder_ / "short.txt") << "";
  expect_failure({"eval", stories_, "--text", (folder_ / "short.txt").string()}, 1, "expected 2");
  std::ofstream(folder_ / "bad.json") << "{\"w_bits\": ";
  expect_failure(eval({"--recipe", (folder_ / "bad.json").string()}), 1, "bad.json");
  std::ofstream(folder_ / "typo.json") << R"({"w_bit": 4})";
  expect_failure(eval({"--recipe", (folder_ / "typo.json").string()}), 1, "\"w_bit\"");
}

TEST_F(Cli, BadOptionValuesSayWhatWasExpected) {
  QUAROT_NEEDS(data_folder());
  expect_failure(eval({"--recipe", "quarrot"}), 1, "float, naive, quarot, balanced");
  expect_failure(eval({"--device", "tpu"}), 2, "tpu not in {cpu,cuda}");
  expect_failure(eval({"--w-bits", "1"}), 1, "2 to 8");
  expect_failure(eval({"--a-bits", "99"}), 1, "2 to 8");
  expect_failure(eval({"--w-bits", "4", "--w-group", "7"}), 1, "7");
  expect_failure(eval({"--w-method", "awq"}), 1, "rtn, gptq");
  expect_failure(eval({"--w-clip", "some"}), 1, "search, outputs, none or a ratio");
  expect_failure(eval({"--center", "q"}), 1, "none, k, kv");
  expect_failure(eval({"--rotate", "R7"}), 1, "R1, R2, R3, R4");
  expect_failure(eval({"--basis", "dct"}), 1, "plain-hadamard");
  expect_failure(eval({"--alpha", "2"}), 1, "0 to 1");
  expect_failure(eval({"--set", "keep_channels=-5"}), 1, "0 or more");
  expect_failure(eval({"--set", "name=\xff"}), 1, "UTF-8");
  expect_failure(eval({"--a-bits", "4", "--a-clip", "0"}), 1, "clip");
  expect_failure(eval({"--a-clip", "some"}), 1, "search or a number");
  expect_failure(eval({"--recipe", "quarot", "--site-bits", "heads=A8"}), 1, "o_proj=A8");
  expect_failure(eval({"--recipe", "quarot", "--site-bits", "o_proj@5=A8"}), 1, "layers 0 to 4");
  expect_failure(eval({"--site-bits", "o_proj=A8"}), 1, "a_bits, which is 16");
  expect_failure(eval({"--recipe", "quarot", "--a-budget", "3"}), 1, "a_budget is 3");
  expect_failure(eval({"--protocol", "mine"}), 1, "paper or llama.cpp");
  expect_failure(eval({"--stride", "-1"}), 1, "expected 1 to");
  expect_failure(eval({"--stride", "128"}), 1, "expected 1 to 127");
  expect_failure(eval({"--stride", "64", "--protocol", "llama.cpp"}), 1, "stride");
  expect_failure({"eval", stories_, "--text", text_, "--window", "1"}, 1, "expected 2 or more");
  expect_failure(eval({"--max-windows", "-3"}), 1, "-3");
  expect_failure(eval({"--recipe", "balanced", "--calibration", "nothing.txt"}), 1, "nothing.txt");
  expect_failure(eval({"--recipe", "balanced", "--calibration-tokens", "0"}), 1,
                 "calibration_tokens");
  expect_failure({"generate", stories_, "--prompt", "x", "--json", "--temperature", "-1"}, 1,
                 "temperature");
  expect_failure({"generate", stories_, "--prompt", "x", "--json", "--top-p", "0"}, 1, "top-p");
  expect_failure({"generate", stories_, "--prompt", "x", "--json", "-n", "-1"}, 1, "-1 tokens");
  expect_failure({"rotate", stories_, "-o", (folder_ / "o").string(), "--dtype", "f64"}, 1,
                 "f32, f16 or bf16");
  for (const std::string name : {"", "new/.", "new/.."})
    expect_failure({"rotate", stories_, "-o", name}, 1, "expected the name of a new folder");
}

TEST_F(Cli, EvalJsonHasTheDocumentedKeys) {
  QUAROT_NEEDS(data_folder());
  const Outcome outcome = run(eval({"--json", "--recipe", "quarot", "--against", "float"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");  // no progress where there is no terminal
  const json result = json::parse(outcome.out);
  for (const char* key : {"perplexity", "standard_error", "nll", "tokens", "windows", "window",
                          "protocol", "recipe", "model", "device", "seconds", "peak_bytes"}) {
    EXPECT_TRUE(result.contains(key)) << key;
  }
  EXPECT_EQ(result["windows"], result["nll"].size());
  EXPECT_GT(result["windows"], 2);
  EXPECT_EQ(result["window"], 128);
  EXPECT_EQ(result["tokens"], 127 * result["windows"].get<int64_t>());
  const auto losses = result["nll"].get<std::vector<double>>();
  const double mean =
      std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  EXPECT_NEAR(std::log(result["perplexity"].get<double>()), mean, 1e-9);
  EXPECT_EQ(result["model"], stories_);
  EXPECT_EQ(result["device"], "cpu");
  EXPECT_EQ(result["recipe"]["name"], "quarot");
  EXPECT_GT(result["seconds"], 0);
  EXPECT_GT(result["peak_bytes"], 1 << 20);
  EXPECT_GT(result["against"]["kl"], 0);
  EXPECT_LE(result["against"]["top1_agreement"], 1);
  // The recipe printed is a recipe to give: the same result.
  std::ofstream(folder_ / "again.json") << result["recipe"];
  const Outcome again = run(eval({"--json", "--recipe", (folder_ / "again.json").string()}));
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_NEAR(json::parse(again.out)["perplexity"].get<double>(),
              result["perplexity"].get<double>(), 1e-6 * result["perplexity"].get<double>());
}

TEST_F(Cli, TextOutputSaysTheProtocol) {
  QUAROT_NEEDS(data_folder());
  const Outcome outcome = run(eval({"--protocol", "llama.cpp", "--max-windows", "2"}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part : {"perplexity", "±", "llama.cpp: windows of 128", "in 2 windows", "peak"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part;
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);  // colours only on a terminal
}

TEST_F(Cli, CompareMeasuresEachRecipeAtEachWidth) {
  QUAROT_NEEDS(data_folder());
  const Arguments compare = {"compare",  stories_,       "--text",    text_,
                             "--window", "128",          "--recipes", "naive,quarot",
                             "--bits",   "W4A4KV4,W8A8", "--seed",    "3"};
  Arguments as_json = compare;
  as_json.emplace_back("--json");
  const Outcome outcome = run(as_json);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  std::vector<std::string> rows;
  for (const json& row : result["results"])
    rows.push_back(row["recipe"]["name"].get<std::string>() + " " + row["bits"].get<std::string>());
  EXPECT_EQ(rows, (std::vector<std::string>{"float W16A16KV16", "naive W4A4KV4", "naive W8A8KV16",
                                            "quarot W4A4KV4", "quarot W8A8KV16"}));
  EXPECT_EQ(result["results"][0]["kl"], 0);
  // A row is what eval says of the recipe in it.
  std::ofstream(folder_ / "row.json") << result["results"][3]["recipe"];
  const json alone = json::parse(
      run(eval({"--json", "--against", "float", "--recipe", (folder_ / "row.json").string()})).out);
  const json& row = result["results"][3];
  for (const char* key : {"kl", "top1_agreement"})
    EXPECT_NEAR(row[key].get<double>(), alone["against"][key].get<double>(), 1e-6) << key;
  EXPECT_NEAR(row["perplexity"].get<double>(), alone["perplexity"].get<double>(), 1e-4);

  const Outcome table = run(compare);
  EXPECT_EQ(table.status, 0);
  EXPECT_EQ(std::ranges::count(table.out.substr(0, table.out.find("\n\n")), '\n'), 5);
}

TEST_F(Cli, InspectAndProbeJson) {
  QUAROT_NEEDS(data_folder());
  const Outcome inspect = run({"inspect", stories_, "--json"});
  ASSERT_EQ(inspect.status, 0) << inspect.err;
  const json seen = json::parse(inspect.out);
  EXPECT_EQ(seen["family"], "llama");
  EXPECT_EQ(seen["hidden"], 64);
  EXPECT_EQ(seen["widths"].size(), 4U);
  EXPECT_EQ(keys(seen["bytes"]),
            (std::set<std::string>{"stored", "fp16", "w4", "cache_a_token", "cache_fp16_a_token",
                                   "cache_kv4_a_token"}));
  const Outcome probe = run({"probe", stories_, "--text", text_, "--tokens", "100", "--json"});
  ASSERT_EQ(probe.status, 0) << probe.err;
  const json sites = json::parse(probe.out);
  EXPECT_EQ(sites["sites"].size(), 5U * 4U);
  EXPECT_LT(sites["logit_error"], 1e-5);
  EXPECT_EQ(run({"inspect", stories_}).status, 0);
  EXPECT_EQ(run({"probe", stories_, "--layers"}).status, 0);
}

TEST_F(Cli, ProbeWritesItsReport) {
  QUAROT_NEEDS(data_folder());
  const fs::path page = folder_ / "report.html";
  const fs::path table = folder_ / "report.csv";
  const fs::path figures = folder_ / "figures";
  const Outcome probe = run({"probe", stories_, "--text", text_, "--tokens", "64", "-o", page,
                             "--csv", table, "--figures", figures});
  ASSERT_EQ(probe.status, 0) << probe.err;
  EXPECT_NE(probe.out.find("KL by layer and site"), std::string::npos);
  EXPECT_GT(fs::file_size(page), 50000U);
  EXPECT_GT(fs::file_size(table), 1000U);
  EXPECT_TRUE(fs::exists(figures / "heat.svg"));
}

TEST_F(Cli, GenerateStreamsOrPrintsJson) {
  QUAROT_NEEDS(data_folder());
  const Outcome text = run(generate());
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(text.out.starts_with("Once upon a time, there was a")) << text.out;
  const Outcome outcome = run(generate({"--json"}));
  const json result = json::parse(outcome.out);
  EXPECT_EQ(keys(result),
            (std::set<std::string>{"text", "tokens", "prompt_tokens", "reason", "recipe", "model",
                                   "prefill_seconds", "decode_seconds", "peak_bytes"}));
  EXPECT_EQ(result["reason"], "max tokens");
  EXPECT_EQ(result["tokens"].size(), 12U);
  const json stopped = json::parse(run(generate({"--json", "--stop", "there"})).out);
  EXPECT_EQ(stopped["text"], ", ");
  EXPECT_EQ(stopped["reason"], "stop string");
}

TEST_F(Cli, BenchTimesTheModelBesideAnotherProgram) {
  QUAROT_NEEDS(data_folder());
  const std::string peer = (folder_ / "peer").string();
  std::ofstream(peer) << "#!/bin/sh\necho \"$@\" >> " << peer
                      << ".calls\necho '[{\"avg_ts\": 0.5}]'\n";
  fs::permissions(peer, fs::perms::owner_all);
  Arguments arguments = {"bench",     stories_, "--tests",         "pp16,tg4@20", "-r",    "2",
                         "--compare", peer,     "--compare-model", "other.gguf",  "--json"};
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(
      keys(result),
      (std::set<std::string>{"model", "recipe", "bits", "execution", "instructions", "threads",
                             "stored_bytes", "model_bytes", "cache_bytes", "peak_bytes", "tests"}));
  ASSERT_EQ(result["tests"].size(), 2U);
  for (const json& test : result["tests"]) {
    const double ours = test["tokens_per_second"];
    EXPECT_GT(ours, 0);
    EXPECT_EQ(test["samples"].size(), 2U);
    EXPECT_NEAR(test["compared"]["ratio"], ours / 0.5, 1e-6 * ours);
  }
  EXPECT_GT(result["tests"][0]["products_alone"]["ratio"], 0);  // a float model's prompt
  std::ifstream calls(peer + ".calls");
  std::string line;
  std::getline(calls, line);
  EXPECT_TRUE(line.starts_with("-m other.gguf -p 16 -n 0 -d 0 -t ")) << line;
  std::getline(calls, line);
  EXPECT_TRUE(line.starts_with("-m other.gguf -p 0 -n 4 -d 20 -t ")) << line;

  const Outcome text =
      run({"bench", stories_, "--recipe", "quarot", "--tests", "tg2", "-r", "1", "--operations"});
  EXPECT_EQ(text.status, 0) << text.err;
  for (const char* part : {"tg2", "tokens/s", "attend", "W4A4KV4", "packed"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part;
  // Of the tests that nobody asked for, those that its context of 512 holds.
  const Outcome all = run({"bench", stories_, "-r", "1", "--json"});
  ASSERT_EQ(all.status, 0) << all.err;
  EXPECT_EQ(json::parse(all.out)["tests"].size(), 3U);
  expect_failure({"bench", stories_, "--tests", "xx7"}, 1, "expected ppN");
  expect_failure({"bench", "nowhere", "--tests", "xx7"}, 1, "expected ppN");  // before any work
  expect_failure({"bench", stories_, "--tests", "pp9223372036854775807@9"}, 1, "context");
  expect_failure({"bench", stories_, "--tests", "pp1x"}, 1, "expected ppN");
  expect_failure({"bench", stories_, "--tests", "tg8@9999"}, 1, "context");
  expect_failure({"bench", stories_, "--compare", peer}, 1, "--compare-model");
  expect_failure({"bench", "--config", "llama-2-7b"}, 1, "--config NAME --random-weights");
  expect_failure({"bench", "--config", "llama-2-7b", "--random-weights"}, 1, "--recipe quarot");
  expect_failure({"bench", "--config", "x", "--random-weights", "--recipe", "quarot"}, 1,
                 "llama-2-7b, ");
  expect_failure(
      {"bench", stories_, "--tests", "tg2", "--compare", "/nowhere", "--compare-model", "x"}, 1,
      "/nowhere");
  expect_failure(
      {"bench", stories_, "--tests", "tg2", "--compare", "false", "--compare-model", "x"}, 1,
      "false failed");
  expect_failure({"bench", stories_, "--tests", "tg2", "--compare", "true", "--compare-model", "x"},
                 1, "avg_ts");
}

TEST_F(Cli, SeedDecidesTheSample) {
  QUAROT_NEEDS(data_folder());
  const auto sample = [&](const char* seed) {
    return run(generate({"--temperature", "1.5", "--seed", seed})).out;
  };
  EXPECT_EQ(sample("1"), sample("1"));
  EXPECT_NE(sample("1"), sample("2"));
}

TEST_F(Cli, RotatedModelIsTheSameFunction) {
  QUAROT_NEEDS(data_folder());
  const std::string rotated = (folder_ / "rotated").string();
  const Outcome outcome = run({"rotate", stories_, "-o", rotated, "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(keys(json::parse(outcome.out)),
            (std::set<std::string>{"output", "recipe", "bytes", "resumed_layers", "peak_bytes"}));
  const auto perplexity = [&](const std::string& model) {
    const Outcome found = run({"eval", model, "--text", text_, "--window", "128", "--json"});
    EXPECT_EQ(found.status, 0) << found.err;
    return json::parse(found.out)["perplexity"].get<double>();
  };
  EXPECT_NEAR(perplexity(rotated) / perplexity(stories_), 1, 1e-4);
  expect_failure({"rotate", stories_, "-o", rotated}, 1, "exists already");
  expect_failure({"rotate", rotated, "-o", rotated + "2"}, 1, "carries a recipe already");
  expect_failure({"eval", rotated, "--text", text_, "--window", "128", "--recipe", "quarot"}, 1,
                 "original model");
  EXPECT_NE(run({"inspect", rotated}).out.find("quarot"), std::string::npos);
}

TEST_F(Cli, InspectSaysWhatIsStored) {
  QUAROT_NEEDS(data_folder());
  const auto stored = [&](const std::string& name, std::vector<std::string> options) {
    const std::string folder = (folder_ / name).string();
    std::vector<std::string> arguments = {"quantize", stories_, "-o", folder, "--recipe", "quarot"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome written = run(arguments);
    EXPECT_EQ(written.status, 0) << written.err;
    return json::parse(run({"inspect", folder, "--json"}).out);
  };
  const json few = stored("few", {"--k-bits", "3", "--v-bits", "5", "--head-bits", "8"});
  EXPECT_EQ(few["recipe"], "quarot (W4A4K3V5H8)");
  // Heads of 8 take a page's 16; keys of 3 bits would need 32.
  EXPECT_EQ(few["stored"], (json{{"weights", "layers 4 bits, embedding F16, lm_head 8 bits"},
                                 {"cache", "K 3 bits in 4, V 5 bits in 8, heads of 8 in 16"}}));
  const json many = stored("many", {"--w-bits", "8", "--k-bits", "16", "--v-bits", "16"});
  EXPECT_EQ(many["stored"]["weights"], "layers 8 bits, embedding F16, lm_head F16");
  EXPECT_EQ(many["stored"]["cache"], "K float32, V float32, heads of 8 in 16");
  EXPECT_GT(many["bytes"]["cache_a_token"], 2 * few["bytes"]["cache_a_token"].get<double>());
}

// From the option to the folder, and from there to what runs it.
TEST_F(Cli, BitsOfSomeSitesAreKeptAndShown) {
  QUAROT_NEEDS(data_folder());
  const auto write = [&](const std::string& name, const Arguments& options) {
    const std::string folder = (folder_ / name).string();
    Arguments all = {"quantize", stories_, "-o", folder, "--calibration", text_, "--dtype", "f32"};
    all.insert(all.end(), options.begin(), options.end());
    const Outcome outcome = run(all);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return folder;
  };
  const std::string named =
      write("named", {"--site-bits", "o_proj=A8", "--site-bits", "down_proj@0-1,4=W8A8"});
  const json seen = json::parse(run({"inspect", named, "--json"}).out);
  EXPECT_EQ(seen["site_bits"], json({"o_proj=A8", "down_proj@0-1,4=W8A8"}));
  EXPECT_EQ(seen["recipe"], "balanced (W4/8A4/8KV4)");
  EXPECT_GT(seen["average_bits"]["weight"], 4.5);
  EXPECT_NE(seen["stored"]["weights"].get<std::string>().find("4 bits and 8 bits"),
            std::string::npos);
  EXPECT_NE(run({"inspect", named}).out.find("o_proj=A8 down_proj@0-1,4=W8A8; on average"),
            std::string::npos);
  const std::string chosen = write("chosen", {"--a-budget", "5", "--w-budget", "4.5"});
  const json rules = json::parse(run({"inspect", chosen, "--json"}).out)["site_bits"];
  EXPECT_FALSE(rules.empty());
  // The folder and the options that it was written with say the same.
  const auto perplexity = [&](const Arguments& what) {
    Arguments all = {"eval"};
    all.insert(all.end(), what.begin(), what.end());
    all.insert(all.end(), {"--text", text_, "--window", "128", "--json"});
    const Outcome outcome = run(all);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const json result = json::parse(outcome.out);
    EXPECT_EQ(result["execution"], "packed");
    return result["perplexity"].get<double>();
  };
  Arguments options = {stories_, "--recipe", "balanced", "--calibration", text_};
  for (const json& rule : rules) options.insert(options.end(), {"--site-bits", rule});
  EXPECT_EQ(perplexity({chosen}), perplexity(options));
  EXPECT_NE(perplexity({chosen}), perplexity({named}));
}

TEST_F(Cli, OutputThatCannotBeWrittenIsAnError) {
  QUAROT_NEEDS(data_folder());
  for (const Arguments& arguments : {Arguments{"--help"},
                                     {"eval", "--help"},
                                     {"--version"},
                                     {"inspect", stories_},
                                     {"inspect", stories_, "--json"},
                                     {"completion", "bash"},
                                     generate(),
                                     eval({"--json"})}) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    const int full_disk = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
    const Outcome full = run(arguments, {.output = full_disk});
    ::close(full_disk);
    EXPECT_EQ(full.status, 1);
    EXPECT_NE(full.err.find("cannot write to standard output"), std::string::npos) << full.err;
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    ::close(pipe[0]);  // nobody reads it
    const Outcome closed = run(arguments, {.output = pipe[1]});
    ::close(pipe[1]);
    EXPECT_EQ(closed.status, 1);
    EXPECT_NE(closed.err.find("cannot write to standard output"), std::string::npos) << closed.err;
  }
}

TEST_F(Cli, CompletionIsAScriptThatKnowsEveryCommand) {
  for (const char* shell : {"bash", "zsh"}) {
    const Outcome outcome = run({"completion", shell});
    EXPECT_EQ(outcome.status, 0);
    for (const char* command : kCommands)
      EXPECT_NE(outcome.out.find(std::string("    ") + command + ") words="), std::string::npos);
    EXPECT_NE(outcome.out.find("--max-windows"), std::string::npos);
  }
  std::ofstream(folder_ / "c.bash") << run({"completion", "bash"}).out
                                    << "\nCOMP_WORDS=(quarot ev) COMP_CWORD=1\n_quarot\n"
                                       "[ \"${COMPREPLY[*]}\" = eval ]\n";
  EXPECT_EQ(std::system(("bash " + (folder_ / "c.bash").string()).c_str()), 0);
}

TEST_F(Cli, InterruptDuringEvalIs130) {
  QUAROT_NEEDS(data_folder());
  const std::string wiki = (*data_folder() / "wikitext2" / "test.joined.txt").string();
  const Child child({"eval", stories_, "--text", wiki, "--window", "64", "--json"});
  std::this_thread::sleep_for(std::chrono::seconds(1));
  child.signal(SIGINT);
  const Outcome outcome = child.wait();
  EXPECT_EQ(outcome.status, 130);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "quarot: interrupted\n");
}

TEST_F(Cli, InterruptDuringRotateLeavesNothingFinished) {
  QUAROT_NEEDS(smollm2());
  const fs::path folder = folder_ / "out";
  const fs::path second = folder_ / "out.partial" / "model-00002-of-00031.safetensors";
  const Child child({"rotate", smollm2()->string(), "-o", folder.string(), "--json"});
  for (int i = 0; i < 30000 && !fs::exists(second); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  child.signal(SIGINT);
  const Outcome outcome = child.wait();
  EXPECT_EQ(outcome.status, 130);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "quarot: interrupted\n");
  EXPECT_FALSE(fs::exists(folder));
  for (const auto& entry : fs::directory_iterator(folder_ / "out.partial")) {
    const std::string extension = entry.path().extension().string();
    EXPECT_TRUE(extension == ".safetensors" || extension == ".json") << entry.path();
  }
}

TEST_F(Cli, ChatAnswersFromArgumentsAndFromInput) {
  QUAROT_NEEDS(smollm2());
  const Arguments chat = {"chat", smollm2()->string(), "-n", "4", "--json"};
  Arguments said = chat;
  said.insert(said.end(), {"-m", "What is gravity?"});
  const Outcome outcome = run(said);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json answer = json::parse(outcome.out);
  EXPECT_EQ(keys(answer), (std::set<std::string>{"role", "content"}));
  EXPECT_EQ(answer["role"], "assistant");
  EXPECT_NE(answer["content"], "");
  EXPECT_EQ(run(chat, {.input = "What is gravity?\n"}).out, outcome.out);
}

// Peak memory of a float evaluation: the model in float32, one batch's activations, one layer's
// working set.
TEST_F(Cli, EvalStaysWithinItsMemory) {
  QUAROT_NEEDS(data_folder());
  QUAROT_NEEDS(smollm2());
  if (testing::under_sanitizer()) GTEST_SKIP() << "a sanitizer's own memory counts too";
  const json shape = json::parse(run({"inspect", smollm2()->string(), "--json"}).out);
  const auto of = [&](const char* key) { return shape[key].get<double>(); };
  constexpr double kRows = 1024;
  const double attention = of("heads") * of("head_dim");
  const double kv = of("kv_heads") * of("head_dim");
  // x, the norms' output, q, attention output; k, v; gate, up; cosines and sines.
  const double buffers = 2 * of("hidden") + 2 * attention + 2 * kv + 2 * of("ffn") + of("head_dim");
  const double cache = 2 * of("layers") * kv;
  const double logits = 128 * of("vocab");
  const double activations = 4 * (kRows * (buffers + cache) + logits);
  const double layer = 4 * (2 * of("hidden") * (attention + kv) + 3 * of("hidden") * of("ffn"));
  const double model = 4 * of("parameters");
  // The program itself: code, tokenizer, the text and its tokens, packing buffers.
  constexpr double kProgram = 80e6;
  const std::string wiki = (*data_folder() / "wikitext2" / "test.joined.txt").string();
  const Outcome outcome = run({"eval", smollm2()->string(), "--text", wiki, "--window", "1024",
                               "--max-windows", "1", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_LE(json::parse(outcome.out)["peak_bytes"].get<double>(),
            model + activations + layer + kProgram);
}

}  // namespace
}  // namespace quarot
