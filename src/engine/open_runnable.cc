#include "engine/open_runnable.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/memory.h"
#include "formats/json.h"
#include "runtime/make_backend.h"

namespace quarot {

Result<OpenModel> open_model(const std::filesystem::path& path) {
  OpenModel open;
  QUAROT_ASSIGN_OR_RETURN(open.checkpoint, open_checkpoint(path));
  QUAROT_ASSIGN_OR_RETURN(open.tokenizer, open.checkpoint->open_tokenizer());
  return open;
}

Result<Recipe> find_recipe(const std::string& name_or_file) {
  if (!name_or_file.ends_with(".json")) return recipe_by_name(name_or_file);
  QUAROT_ASSIGN_OR_RETURN(const nlohmann::json json, read_json_file(name_or_file));
  return parse_recipe(json, name_or_file);
}

Result<RunnableModel> make_runnable(OpenModel open, const Recipe& recipe, Execution execution,
                                    Device device,
                                    const std::optional<std::filesystem::path>& calibration,
                                    Progress& progress) {
  QUAROT_ASSIGN_OR_RETURN(
      PreparedModel prepared,
      prepare_outer(*open.checkpoint, *open.tokenizer, recipe, calibration, progress, device));
  // One tells of all how they can run.
  QUAROT_ASSIGN_OR_RETURN(Layer first, prepared.next_layer());
  prepared.model.layers.push_back(std::move(first));
  const Precision& precision = prepared.recipe.precision;
  RunnableModel runnable;
  runnable.execution = execution == Execution::kAutomatic
                           ? best_execution(prepared.model, precision, device)
                           : execution;
  QUAROT_ASSIGN_OR_RETURN(runnable.backend,
                          make_backend(std::move(prepared.model), precision, runnable.execution,
                                       device, prepared.next_layer));
  return_freed_memory();
  runnable.tokenizer = std::move(open.tokenizer);
  runnable.recipe = std::move(prepared.recipe);
  if (prepared.reports) runnable.layers = *prepared.reports;
  runnable.calibration = std::move(prepared.calibration);
  return runnable;
}

}  // namespace quarot
