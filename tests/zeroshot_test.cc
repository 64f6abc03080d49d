// Log-likelihoods of SmolLM2 on the paper's zero-shot tasks against an independent implementation:
// of a few items by default, of all that there are golden values for with QUAROT_FULL=1.
#include <gtest/gtest.h>

#include <cmath>

#include "eval/tasks.h"
#include "support/model.h"

namespace quarot {
namespace {

using testing::data_folder;
using testing::value_of;

constexpr double kRounding = 0.5e-4;  // the golden values have four decimals

class ZeroShot : public ::testing::TestWithParam<const char*> {
 protected:
  // The golden score of a continuation: its log-likelihood, for LAMBADA with whether it is greedy.
  static double likelihood(const nlohmann::json& golden) {
    return golden.is_array() ? golden[0].get<double>() : golden.get<double>();
  }
};

TEST_P(ZeroShot, LikelihoodsMatch) {
  QUAROT_NEEDS(data_folder());
  QUAROT_NEEDS(testing::smollm2());
  const auto checkpoint = value_of(open_checkpoint(*testing::smollm2()));
  const auto tokenizer = value_of(checkpoint->open_tokenizer());
  const Model model = value_of(load_model(*checkpoint));
  const std::string name = GetParam();
  const nlohmann::json golden =
      testing::read_json(*data_folder() / "golden" / "smollm2.zeroshot-first60.json")[name];
  const int64_t items = testing::full() ? std::ssize(golden) : 6;
  const Task task = value_of(
      open_task(*data_folder() / "zeroshot" / (name + ".jsonl"), items, *tokenizer, model.config));
  SimulatedBackend backend(model, {});
  NoProgress progress;
  const auto scores = value_of(score_items(backend, task.items, progress));
  ASSERT_EQ(std::ssize(scores), items);
  for (size_t i = 0; i < scores.size(); ++i) {
    ASSERT_EQ(scores[i].size(), golden[i].size());
    for (size_t c = 0; c < scores[i].size(); ++c) {
      const double expected = likelihood(golden[i][c]);
      EXPECT_NEAR(scores[i][c].log_likelihood, expected, 1e-4 * std::abs(expected) + kRounding)
          << "item " << i << ", continuation " << c;
      if (golden[i][c].is_array()) {
        EXPECT_EQ(scores[i][c].greedy, golden[i][c][1].get<bool>()) << "item " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tasks, ZeroShot,
                         ::testing::Values("piqa", "winogrande", "arc_easy", "arc_challenge",
                                           "lambada_openai"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace quarot
