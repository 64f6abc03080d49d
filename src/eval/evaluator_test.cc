#include "eval/evaluator.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/mapped_file.h"
#include "eval/result_json.h"
#include "support/model.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::data_folder;
using testing::value_of;

// Counts the stages of work that is not measuring.
class Stages final : public Progress {
 public:
  void stage(std::string_view name, int64_t) override {
    if (!name.starts_with("measuring")) ++preparing;
  }
  void advance(int64_t) override {}
  bool cancelled() const override { return stopped; }

  int preparing = 0;
  bool stopped = false;
};

class EvaluatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("quarot-evaluator-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(folder_ / "calibration.txt") << "Once upon a time there was a dog.";
    if (data_folder()) {
      model_ = value_of(open_model(*data_folder() / "models" / "stories260k" / "stories260K.bin"));
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  EvaluatorOptions options() const {
    PerplexityOptions perplexity;
    perplexity.window = 32;
    perplexity.max_windows = 3;
    std::string text;
    for (int i = 0; i < 20; ++i) text += "Lily had a red ball. She ran to the big tree. ";
    const ModelConfig config = value_of(parse_config(model_.checkpoint->config(), "test"));
    EvaluatorOptions options;
    options.windows =
        value_of(cut_windows(model_.tokenizer->encode(text), perplexity, std::nullopt));
    options.protocol = describe(perplexity);
    options.tasks = {
        value_of(make_task("pets.jsonl",
                           {{{{"She had a", " dog"}, {"She had a", " the"}}, {4, 4}, 0, 1},
                            {{{"The sun was", " big"}, {"The sun was", " ran"}}, {4, 4}, 0, 2}},
                           *model_.tokenizer, config))};
    options.store = value_of(ResultStore::open(folder_ / "results"));
    options.program = "test";
    options.model_hash = value_of(model_hash(*model_.checkpoint));
    return options;
  }

  Evaluator evaluator(const EvaluatorOptions& options) const {
    return value_of(Evaluator::create(model_, options));
  }

  static json json_of(const Measured& measured) {
    return {{"perplexity", *measured.perplexity}, {"tasks", measured.tasks}};
  }

  fs::path folder_;
  OpenModel model_;
};

TEST_F(EvaluatorTest, MeasuresWhatItsPartsDo) {
  QUAROT_NEEDS(data_folder());
  const EvaluatorOptions wanted = options();
  const Recipe recipe = value_of(recipe_by_name("quarot"));
  Stages stages;
  const Measured measured = value_of(evaluator(wanted).measure(recipe, nullptr, stages));
  const PreparedModel prepared =
      value_of(prepare_model(*model_.checkpoint, *model_.tokenizer, recipe, std::nullopt, stages));
  SimulatedBackend backend(prepared.model, recipe.precision);
  EXPECT_EQ(json(*measured.perplexity),
            json(value_of(measure_perplexity(backend, nullptr, wanted.windows, stages))));
  EXPECT_EQ(json(measured.tasks[0]),
            json(value_of(measure_task(backend, wanted.tasks[0], stages))));
}

TEST_F(EvaluatorTest, RemembersAndMeasuresOnlyWhatIsMissing) {
  QUAROT_NEEDS(data_folder());
  const Recipe recipe = value_of(recipe_by_name("quarot"));
  Stages stages;
  const Measured first = value_of(evaluator(options()).measure(recipe, nullptr, stages));
  Stages stopped;
  stopped.stopped = true;
  const auto again = evaluator(options()).measure(recipe, nullptr, stopped);
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(json_of(*again), json_of(first));
  EXPECT_EQ(stopped.preparing, 0);

  // What a result depends on: each of these asks anew.
  const auto asks = [&](const EvaluatorOptions& changed, const Recipe& r) {
    const auto result = evaluator(changed).measure(r, nullptr, stopped);
    return !result.ok() && result.error().code() == ErrorCode::kCancelled;
  };
  EXPECT_FALSE(asks(options(), recipe));
  EvaluatorOptions changed = options();
  changed.windows.back().scored -= 1;
  EXPECT_TRUE(asks(changed, recipe));
  changed = options();
  changed.tasks[0].texts[1].gold = 1;
  EXPECT_TRUE(asks(changed, recipe));
  changed = options();
  changed.against_model = true;
  EXPECT_TRUE(asks(changed, recipe));
  changed = options();
  changed.calibration = folder_ / "calibration.txt";
  EXPECT_FALSE(asks(changed, recipe));  // it needs none
  Recipe other = recipe;
  other.precision.activations.clip = 0.8F;
  EXPECT_TRUE(asks(options(), other));
}

TEST_F(EvaluatorTest, PreparesSharedWeightsOnce) {
  QUAROT_NEEDS(data_folder());
  EvaluatorOptions wanted = options();
  wanted.store.reset();
  const Recipe first = value_of(recipe_by_name("quarot"));
  Recipe second = first;
  second.precision.activations.bits = 8;
  Stages alone;
  const Measured expected = value_of(evaluator(wanted).measure(second, nullptr, alone));
  Stages together;
  Evaluator both = evaluator(wanted);
  (void)value_of(both.measure(first, &second, together));
  EXPECT_EQ(together.preparing, alone.preparing);
  EXPECT_EQ(json_of(value_of(both.measure(second, nullptr, together))), json_of(expected));
  EXPECT_EQ(together.preparing, alone.preparing);
}

TEST_F(EvaluatorTest, MeasuresFloatAgainstItself) {
  QUAROT_NEEDS(data_folder());
  EvaluatorOptions wanted = options();
  wanted.against_model = true;
  Stages stages;
  const Measured measured = value_of(evaluator(wanted).measure(Recipe(), nullptr, stages));
  EXPECT_EQ(measured.perplexity->against->kl, 0);
  EXPECT_EQ(measured.perplexity->against->top1_agreement, 1);
}

TEST(SameWeights, AreThoseOfRecipesThatOnlyRunDifferently) {
  const Recipe quarot = value_of(recipe_by_name("quarot"));
  Recipe other = quarot;
  other.name = "mine";
  other.precision.keys.bits = 2;
  EXPECT_TRUE(same_weights(quarot, other));
  other.weight_method = WeightMethod::kGptq;
  EXPECT_FALSE(same_weights(quarot, other));
  Recipe gptq = quarot;
  gptq.weight_method = WeightMethod::kGptq;
  EXPECT_TRUE(same_weights(gptq, other));
  gptq.gptq_quantized_inputs = other.gptq_quantized_inputs = true;
  EXPECT_FALSE(same_weights(gptq, other));  // rounded under different activations
  other.precision = gptq.precision;
  EXPECT_TRUE(same_weights(gptq, other));
  other.seed = 1;
  EXPECT_FALSE(same_weights(gptq, other));
}

}  // namespace
}  // namespace quarot
