// What a table of a study found, on a terminal, as Markdown, CSV or JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/study_tables.h"
#include "eval/evaluator.h"
#include "recipe/storage_cost.h"

namespace quarot::cli {

struct StudyOutcome {
  struct Row {
    std::string label;
    StorageCost cost;
    std::vector<Measured> seeds;  // one or more
  };
  const StudyTable* table = nullptr;
  std::vector<Row> rows;
  std::vector<std::string> left_out;  // rows that do not fit the model, and why
};

// What all tables of a study have in common.
struct StudyContext {
  const EvaluatorOptions* evaluator = nullptr;
  std::string text;                // its path
  std::vector<std::string> notes;  // for people: what --quick left out
};

enum class StudyFormat { kTerminal, kMarkdown, kCsv };

std::string to_text(const StudyOutcome& outcome, const StudyContext& context, StudyFormat format);
nlohmann::json to_json(const StudyOutcome& outcome, const StudyContext& context);

}  // namespace quarot::cli
