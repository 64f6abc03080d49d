#include "formats/task_file.h"

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "support/data.h"

namespace quarot {
namespace {

TEST(TaskFile, ReadsChoices) {
  const auto items = parse_task_file(
      R"({"id": 7, "pairs": [["Q:", " a"], ["Q:", " bc"]], "norm": [1, 2], "gold": 1})"
      "\r\n\n"
      R"({"pairs": [["", "x"]], "norm": [0.5], "gold": 0})",
      "t.jsonl");
  ASSERT_TRUE(items.ok()) << items.error().message();
  ASSERT_EQ(items->size(), 2U);
  const TaskItem& first = items->front();
  EXPECT_EQ(first.pairs[1].context, "Q:");
  EXPECT_EQ(first.pairs[1].continuation, " bc");
  EXPECT_EQ(first.norm, (std::vector<double>{1, 2}));
  EXPECT_EQ(first.gold, 1U);
  EXPECT_EQ(first.line, 1);
  EXPECT_EQ(items->back().line, 3);
}

TEST(TaskFile, ReadsWordsToContinueWith) {
  const auto items = parse_task_file(R"({"pairs": [["In my palm", " is"]]})", "t.jsonl");
  ASSERT_TRUE(items.ok()) << items.error().message();
  EXPECT_FALSE(items->front().gold.has_value());
}

struct Broken {
  const char* contents;
  const char* message;
};

TEST(TaskFile, SaysWhichLineIsBroken) {
  for (const Broken& broken : {
           Broken{"", "t.jsonl: no items"},
           {"\n \n", "t.jsonl: no items"},
           {"{\"pairs\": ", "t.jsonl:1: not valid JSON"},
           {"\n[]", "t.jsonl:2: expected a JSON object"},
           {"{}", "\"pairs\": expected"},
           {R"({"pairs": []})", "\"pairs\": expected"},
           {R"({"pairs": [["a"]]})", "\"pairs\": expected"},
           {R"({"pairs": [["a", 1]]})", "\"pairs\": expected"},
           {R"({"pairs": [["a", ""]]})", "not empty"},
           {R"({"pairs": [["a", "b"], ["a", "c"]]})", "2 pairs without \"gold\""},
           {R"({"pairs": [["a", "b"]], "gold": 1, "norm": [1]})", "\"gold\" is 1, expected 0 to 0"},
           {R"({"pairs": [["a", "b"]], "gold": -1, "norm": [1]})", "\"gold\" is -1"},
           {R"({"pairs": [["a", "b"]], "gold": 0.0, "norm": [1]})", "\"gold\" is 0.0"},
           {R"({"pairs": [["a", "b"]], "gold": 0})", "\"norm\": expected 1 numbers"},
           {R"({"pairs": [["a", "b"]], "gold": 0, "norm": [1, 2]})", "\"norm\": expected 1"},
           {R"({"pairs": [["a", "b"]], "gold": 0, "norm": [0]})", "\"norm\": expected 1"},
           {R"({"pairs": [["a", "b"]]})"
            "\n"
            R"({"pairs": [["a", "b"]], "gold": 0, "norm": [1]})",
            "t.jsonl:2: expected \"gold\" in every line or in none"},
       }) {
    const auto items = parse_task_file(broken.contents, "t.jsonl");
    ASSERT_FALSE(items.ok()) << broken.contents;
    EXPECT_EQ(items.error().code(), ErrorCode::kCorrupt);
    EXPECT_NE(items.error().message().find(broken.message), std::string::npos)
        << items.error().message();
  }
}

TEST(TaskFile, ReadsThePapersTasks) {
  QUAROT_NEEDS(testing::data_folder());
  const std::pair<const char*, size_t> tasks[] = {{"arc_challenge", 1172},
                                                  {"arc_easy", 2376},
                                                  {"lambada_openai", 5153},
                                                  {"piqa", 1838},
                                                  {"winogrande", 1267}};
  for (const auto& [name, count] : tasks) {
    const auto path = *testing::data_folder() / "zeroshot" / (std::string(name) + ".jsonl");
    const auto contents = read_text_file(path);
    ASSERT_TRUE(contents.ok()) << contents.error().message();
    const auto items = parse_task_file(*contents, path.string());
    ASSERT_TRUE(items.ok()) << items.error().message();
    EXPECT_EQ(items->size(), count) << name;
  }
}

}  // namespace
}  // namespace quarot
