// The experiments of the paper and of those it is compared with, as data. A row is a recipe and
// what it changes; to add a method to a table, add a row.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/recipe.h"

namespace quarot::cli {

struct StudyRow {
  std::string label;
  std::string recipe;                                 // a named one …
  nlohmann::json changes = nlohmann::json::object();  // … with these of its JSON fields changed
};

struct StudyTable {
  std::string_view name;
  std::string_view title;
  std::vector<StudyRow> rows;  // the first is what the others are compared with
  int seeds = 1;
  bool zero_shot = false;  // measures the tasks; all tables measure the text
};

const std::vector<StudyTable>& study_tables();

// kInvalidArgument for a row that names no recipe or changes no field.
Result<Recipe> recipe_of(const StudyRow& row);

}  // namespace quarot::cli
