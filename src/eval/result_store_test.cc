#include "eval/result_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "eval/result_json.h"
#include "support/model.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::expect_ok;
using testing::value_of;

class ResultStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("quarot-results-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static ResultKey key() {
    return {"0.1.0", "m", value_of(recipe_by_name("quarot")), "c", "cpu", "perplexity",
            "paper", "t"};
  }

  fs::path folder_;
};

TEST_F(ResultStoreTest, FindsWhatItKept) {
  const ResultStore store = value_of(ResultStore::open(folder_ / "deep"));
  EXPECT_FALSE(value_of(store.find(key())).has_value());
  expect_ok(store.keep(key(), {{"x", 0.1}}));
  EXPECT_EQ(*value_of(store.find(key())), json({{"x", 0.1}}));
  EXPECT_EQ(*value_of(value_of(ResultStore::open(folder_ / "deep")).find(key())),
            json({{"x", 0.1}}));
  const json record = testing::read_json(store.path(key()));
  for (const char* field : {"program", "model", "recipe", "seed", "calibration", "device",
                            "measure", "protocol", "tokens"}) {
    EXPECT_TRUE(record["key"].contains(field)) << field;
  }
}

TEST_F(ResultStoreTest, EveryPartOfTheKeyCountsButTheRecipesName) {
  const ResultStore store = value_of(ResultStore::open(folder_));
  expect_ok(store.keep(key(), 1));
  const auto is_another = [&](const ResultKey& other) {
    return !value_of(store.find(other)).has_value();
  };
  for (std::string ResultKey::*part :
       {&ResultKey::program, &ResultKey::model, &ResultKey::calibration, &ResultKey::device,
        &ResultKey::measure, &ResultKey::protocol, &ResultKey::tokens}) {
    ResultKey other = key();
    other.*part += "x";
    EXPECT_TRUE(is_another(other)) << json(other);
  }
  ResultKey other = key();
  other.recipe.weights.bits = 3;
  EXPECT_TRUE(is_another(other));
  other = key();
  other.recipe.seed = 1;
  EXPECT_TRUE(is_another(other));
  other = key();
  other.recipe.precision.activations.clip = 0.95F;
  EXPECT_TRUE(is_another(other));
  ResultKey renamed = key();
  renamed.recipe.name = "mine";
  EXPECT_EQ(*value_of(store.find(renamed)), 1);
}

TEST_F(ResultStoreTest, RefusesAFileThatIsNotWhatItsNameSays) {
  const ResultStore store = value_of(ResultStore::open(folder_));
  for (const char* contents : {"", "{\"key\": 1}", "[]", "{\"key\": {}, \"result\": 1}"}) {
    std::ofstream(store.path(key())) << contents;
    const auto found = store.find(key());
    ASSERT_FALSE(found.ok()) << contents;
    EXPECT_EQ(found.error().code(), ErrorCode::kCorrupt);
    EXPECT_NE(found.error().message().find(folder_.string()), std::string::npos);
    EXPECT_NE(found.error().message().find("remove"), std::string::npos) << found.error().message();
  }
}

TEST_F(ResultStoreTest, KeepsNoInfinity) {
  const ResultStore store = value_of(ResultStore::open(folder_));
  expect_ok(store.keep(key(), {{"nll", {1.0, std::numeric_limits<double>::infinity()}}}));
  EXPECT_FALSE(value_of(store.find(key())).has_value());
}

TEST_F(ResultStoreTest, SaysWhereItCannotMakeItsFolder) {
  std::ofstream(folder_) << "a file";
  const auto store = ResultStore::open(folder_ / "results");
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.error().message().find(folder_.string()), std::string::npos);
}

TEST(ResultJson, ReadsBackWhatItWrote) {
  PerplexityResult perplexity;
  perplexity.nll = {0.1, 1.0 / 3};
  perplexity.tokens = 7;
  perplexity.perplexity = 1.23456789012345678;
  perplexity.standard_error = 0.1;
  EXPECT_EQ(json(value_of(parse_perplexity(perplexity, "x"))), json(perplexity));
  perplexity.against = {0.01, 0.02, 0.9};
  const json written = perplexity;
  EXPECT_EQ(json(value_of(parse_perplexity(json::parse(written.dump()), "x"))), written);

  perplexity.standard_error = perplexity.against->kl_standard_error =
      std::numeric_limits<double>::quiet_NaN();  // one window: unknown
  EXPECT_TRUE(json(perplexity)["standard_error"].is_null());
  const PerplexityResult read = value_of(parse_perplexity(perplexity, "x"));
  EXPECT_TRUE(std::isnan(read.standard_error) && std::isnan(read.against->kl_standard_error));

  TaskResult task{{1, 0, 1}, 2.0 / 3, 0.3, 0.5, std::nullopt};
  EXPECT_EQ(json(value_of(parse_task_result(task, "x"))), json(task));
  task.acc_norm.reset();
  task.ppl = 9.5;
  EXPECT_EQ(json(value_of(parse_task_result(task, "x"))), json(task));

  json broken = perplexity;
  broken["nll"] = "many";
  EXPECT_NE(parse_perplexity(broken, "file").error().message().find("file: \"nll\""),
            std::string::npos);
  EXPECT_FALSE(parse_task_result(json::object(), "file").ok());
}

}  // namespace
}  // namespace quarot
