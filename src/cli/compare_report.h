// What a comparison found, on a terminal or as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/evaluator.h"
#include "recipe/storage_cost.h"

namespace quarot::cli {

struct ComparedRow {
  std::string model;     // its path, as it was given
  bool on_disk = false;  // measured as it lies there; false: a recipe of it
  double bytes = 0;      // of its tensors: on disk, or as they would be written
  StorageCost cost{};
  Measured measured{};
  std::vector<double> speeds{};  // tokens a second in each of Comparison::speed_tests
};

struct Comparison {
  EvaluatorOptions measured;
  std::vector<ComparedRow> rows;  // the first is what the others' divergence is from
  bool against_float = false;     // the first carries no recipe
  bool found_float = false;       // … and was not given, but found
  std::vector<std::string> speed_tests;
  std::string text;  // its path
  int64_t window = 0;
  double seconds = 0;
};

std::string to_text(const Comparison& comparison);
nlohmann::json to_json(const Comparison& comparison);

}  // namespace quarot::cli
