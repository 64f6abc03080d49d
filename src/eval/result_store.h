// Results kept under everything they depend on, so that a question asked again is answered and a
// killed study goes on: a folder with a JSON file a result, named by the hash of its key.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/checkpoint.h"
#include "recipe/recipe.h"

namespace quarot {

// What a result depends on. Two results whose keys are equal are equal.
struct ResultKey {
  std::string program;      // which version, and build, measured
  std::string model;        // hash of the model's files
  Recipe recipe;            // its name does not count
  std::string calibration;  // hash of the text; empty: none was needed, or the model wrote it
  std::string device;       // "cpu", "cuda"
  std::string measure;      // "perplexity", "perplexity and divergence from float", "task piqa"
  std::string protocol;     // for people
  std::string tokens;       // hash of the tokens that were measured, and which are scored
};
void to_json(nlohmann::json& json, const ResultKey& key);

class ResultStore {
 public:
  // Makes the folder where it is not there.
  static Result<ResultStore> open(const std::filesystem::path& folder);

  // The result of this key; nullopt where there is none. kCorrupt for a file that is not what
  // keep() wrote.
  Result<std::optional<nlohmann::json>> find(const ResultKey& key) const;

  // The file is there whole or not at all. A result with a number that JSON has no word for
  // (infinity) is not kept.
  Status keep(const ResultKey& key, const nlohmann::json& result) const;

  std::filesystem::path path(const ResultKey& key) const;

 private:
  explicit ResultStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
  std::filesystem::path folder_;
};

// One hash of all files of a model's folder and of which of them has the weights, or of the one
// file it is.
Result<std::string> model_hash(const Checkpoint& checkpoint);

}  // namespace quarot
