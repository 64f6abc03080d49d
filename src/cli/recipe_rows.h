// Recipes and models measured one after another: what a comparison and a study are made of.
#pragma once

#include <string>
#include <vector>

#include "eval/evaluator.h"

namespace quarot::cli {

struct RecipeRow {
  std::string label;
  Recipe recipe{};
  const OpenModel* model = nullptr;  // in place of a recipe: this model as it is
};

// In order, with a progress line that says which row it is and, from the rows done, what time is
// left for all.
Result<std::vector<Measured>> measure_rows(Evaluator& evaluator, const std::vector<RecipeRow>& rows,
                                           bool quiet);

// Which build of the program measures, for what is kept from run to run.
std::string program_identity();

}  // namespace quarot::cli
