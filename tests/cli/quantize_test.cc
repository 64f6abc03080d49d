// What quarot quantize promises of the folder it writes: whole or not there, the same bytes
// whatever the threads, the instruction set and the interruptions, in memory that does not grow
// with the number of layers.
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/folder_lock.h"
#include "support/checkpoint.h"
#include "support/program.h"
#include "support/sanitizer.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::steady_clock;
using testing::Arguments;
using testing::Child;
using testing::data_folder;
using testing::Outcome;
using testing::run;
using testing::Setting;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_same(const fs::path& a, const fs::path& b) {
  std::set<std::string> names;
  for (const fs::path& folder : {a, b}) {
    for (const auto& entry : fs::directory_iterator(folder))
      names.insert(entry.path().filename().string());
  }
  EXPECT_GE(names.size(), 5U);
  for (const std::string& name : names)
    EXPECT_TRUE(contents(a / name) == contents(b / name)) << name << " differs";
}

class Quantize : public ::testing::Test {
 protected:
  void SetUp() override {
    QUAROT_NEEDS(data_folder());
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("quarot-quantize-") + info->name() + "-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream file(folder_ / "text.txt");
    for (int i = 0; i < 40; ++i)
      file << "Once upon a time, there was a little girl named Lily. She had " << i << " balls.\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  static fs::path stories() { return *data_folder() / "models" / "stories260k"; }

  Arguments quantize(const std::string& output, const Arguments& more,
                     const fs::path& model = stories() / "stories260K.bin") const {
    Arguments arguments = {"quantize", model, "-o", folder_ / output, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Arguments calibrated(Arguments more = {}) const {
    more.insert(more.end(), {"--calibration", folder_ / "text.txt"});
    return more;
  }

  static Outcome expect_done(const Arguments& arguments, const Setting& setting = {}) {
    Outcome outcome = run(arguments, setting);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome;
  }

  fs::path folder_;
};

TEST_F(Quantize, ThreadsAndInstructionSetChangeNoByte) {
  const Arguments gptq = {"--recipe", "quarot", "--w-method", "gptq"};
  const Arguments both = {"--w-method", "gptq", "--w-group", "4"};
  int n = 0;
  for (const Arguments& options : {Arguments{"--recipe", "quarot"}, calibrated(), calibrated(gptq),
                                   calibrated(both), Arguments{"--calibration-tokens", "256"}}) {
    SCOPED_TRACE(::testing::PrintToString(options));
    const std::string name = std::to_string(n++);
    const auto written = [&](const char* kind, const char* threads, const char* isa) {
      Arguments arguments = quantize(name + kind, options);
      arguments.insert(arguments.end(), {"--threads", threads});
      expect_done(arguments, {.prepare = [&] { ::setenv("QUAROT_ISA", isa, 1); }});
      return folder_ / (name + kind);
    };
    const fs::path one = written("one", "1", "");
    expect_same(one, written("two", "2", ""));
    expect_same(one, written("narrow", "2", "avx2"));
  }
}

// kill -9 again and again, at random moments of the work that is left: never a folder that looks
// finished and is not, and in the end the bytes of an uninterrupted run.
TEST_F(Quantize, KilledAtAnyMomentItGoesOn) {
  Random random(1);
  for (const Arguments& options :
       {calibrated(), calibrated({"--w-method", "gptq"}), Arguments{"--recipe", "quarot"}}) {
    SCOPED_TRACE(::testing::PrintToString(options));
    const fs::path whole = folder_ / "whole";
    const fs::path out = folder_ / "out";
    fs::remove_all(whole);
    const auto begin = steady_clock::now();
    expect_done(quantize("whole", options));
    const std::chrono::duration<double> uninterrupted = steady_clock::now() - begin;
    int kills = 0;
    int finished = 0;
    while (kills < 10) {
      const Child child(quantize("out", options));
      std::this_thread::sleep_for(random.uniform() * uninterrupted);
      child.signal(SIGKILL);
      const auto [status, out_text, err] = child.wait();
      ASSERT_TRUE(status == 0 || status == -SIGKILL) << err;
      kills += status == 0 ? 0 : 1;
      if (!fs::exists(out)) continue;
      expect_same(out, whole);
      fs::remove_all(out);
      ASSERT_LT(++finished, 200);
    }
    expect_done(quantize("out", options));
    expect_same(out, whole);
    EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
    fs::remove_all(out);
  }
}

TEST_F(Quantize, AFullDiskIsAnErrorAndNothingMore) {
  const auto limited = [] {
    const rlimit limit = {40000, 40000};  // less than the shard of the embeddings
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  const Outcome failed = run(quantize("out", calibrated()), {.prepare = limited});
  EXPECT_EQ(failed.status, 1);
  EXPECT_NE(failed.err.find("cannot write: File too large"), std::string::npos) << failed.err;
  EXPECT_EQ(std::ranges::count(failed.err, '\n'), 1) << failed.err;
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  for (const auto& entry : fs::directory_iterator(folder_ / "out.partial"))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  const Outcome resumed = expect_done(quantize("out", calibrated()));
  EXPECT_GT(json::parse(resumed.out)["resumed_layers"], 0);
  expect_done(quantize("whole", calibrated()));
  expect_same(folder_ / "out", folder_ / "whole");
}

constexpr int64_t kHidden = 256;
constexpr int64_t kFfn = 1024;
constexpr int64_t kLayerBytes = 4 * (4 * kHidden * kHidden + 3 * kHidden * kFfn);  // in float32

void write_model(const fs::path& folder, int64_t layers) {
  testing::write_random_checkpoint(folder, testing::config_json({{"hidden_size", kHidden},
                                                                 {"intermediate_size", kFfn},
                                                                 {"num_hidden_layers", layers},
                                                                 {"num_attention_heads", 4},
                                                                 {"num_key_value_heads", 4},
                                                                 {"head_dim", 64},
                                                                 {"vocab_size", 512},
                                                                 {"tie_word_embeddings", true}}));
}

// Whichever comes first writes the whole of it; the other changes nothing.
TEST_F(Quantize, TwoAtOnceAreOneAfterTheOther) {
  expect_done(quantize("alone", calibrated()));
  const Child first(quantize("out", calibrated()));
  const Child second(quantize("out", calibrated()));
  const Outcome outcomes[] = {first.wait(), second.wait()};
  EXPECT_EQ(outcomes[0].status + outcomes[1].status, 1) << outcomes[0].err << outcomes[1].err;
  expect_same(folder_ / "alone", folder_ / "out");

  fs::create_directory(folder_ / "held.partial");
  std::ofstream(folder_ / "held.partial" / "model.safetensors.tmp-1") << "another's";
  {
    const auto lock = FolderLock::acquire(folder_ / "held.partial");
    const Outcome outcome = run(quantize("held", calibrated()));
    EXPECT_EQ(outcome.status, 1);
    EXPECT_NE(outcome.err.find("another process is writing"), std::string::npos) << outcome.err;
    EXPECT_TRUE(fs::exists(folder_ / "held.partial" / "model.safetensors.tmp-1"));
  }
  expect_done(quantize("held", calibrated()));
  expect_same(folder_ / "alone", folder_ / "held");
}

// Models of 4 layers and of 24, and what the program says it held in memory at most.
class Layers : public Quantize {
 protected:
  void SetUp() override {
    Quantize::SetUp();
    if (testing::under_sanitizer()) GTEST_SKIP() << "a sanitizer keeps what is freed";
    if (IsSkipped()) return;
    for (const int64_t layers : {4, 24}) {
      const fs::path model = folder_ / std::to_string(layers);
      write_model(model, layers);
      fs::copy_file(stories() / "tok512.bin", model / "tokenizer.bin");
    }
  }

  static int64_t peak(const Arguments& arguments) {
    return json::parse(expect_done(arguments).out)["peak_bytes"].get<int64_t>();
  }
};

// The peak is the same to less than two layers, of which each takes 4 MiB.
TEST_F(Layers, QuantizingHoldsTwo) {
  const auto peak_of = [&](const char* model, const Arguments& options) {
    fs::remove_all(folder_ / "out");
    return peak(quantize("out", options, folder_ / model));
  };
  const Arguments few = {"--w-clip", "none", "--calibration-tokens", "256"};
  Arguments gptq = few;
  gptq.insert(gptq.end(), {"--w-method", "gptq"});
  for (const Arguments& options : {calibrated(few), calibrated(gptq)}) {
    SCOPED_TRACE(::testing::PrintToString(options));
    EXPECT_LT(peak_of("24", options) - peak_of("4", options), 2 * kLayerBytes);
  }
}

// Each layer more takes the half byte a weight that it is packed in, and no more on the way there,
// whether it is read packed or rounded in memory.
TEST_F(Layers, RunningHoldsThemPacked) {
  const Arguments recipe = {"--recipe", "quarot", "--w-clip", "none"};
  const auto peak_of = [&](const fs::path& model, const Arguments& options) {
    Arguments arguments = {"eval",   folder_ / model, "--text", folder_ / "text.txt",
                           "--json", "--window",      "64",     "--max-windows",
                           "1",      "--threads",     "1"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return peak(arguments);
  };
  constexpr int64_t kPacked = 20 * kLayerBytes / 8;
  EXPECT_LT(peak_of("24", recipe) - peak_of("4", recipe), kPacked + kLayerBytes);
  for (const std::string model : {"4", "24"})
    expect_done(quantize("packed" + model, recipe, folder_ / model));
  EXPECT_LT(peak_of("packed24", {}) - peak_of("packed4", {}), kPacked + kLayerBytes);
}

}  // namespace
}  // namespace quarot
