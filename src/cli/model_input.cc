#include "cli/model_input.h"

#include "base/error.h"
#include "model/json_fields.h"

namespace quarot::cli {

void ModelInput::add_to(CLI::App& command) {
  command
      .add_option("MODEL", path,
                  "a Hugging Face folder, a .safetensors or .gguf file, a llama2.c .bin, or what "
                  "quarot wrote")
      ->required();
}

Result<OpenModel> open_model(const ModelInput& input) {
  OpenModel open;
  QUAROT_ASSIGN_OR_RETURN(open.checkpoint, open_checkpoint(input.path));
  QUAROT_ASSIGN_OR_RETURN(open.tokenizer, open.checkpoint->open_tokenizer());
  return open;
}

void ModelInput::add_execution_to(CLI::App& command) {
  command
      .add_option(
          "--execution", execution,
          "packed: integers; simulated: float with simulated quantisers; auto: packed where "
          "the model is")
      ->check(CLI::IsMember({"auto", "packed", "simulated"}))
      ->capture_default_str();
}

Result<RunnableModel> make_runnable(OpenModel open, const ModelInput& input, const Recipe& recipe,
                                    const std::optional<std::filesystem::path>& calibration,
                                    Device device, Progress& progress) {
  QUAROT_ASSIGN_OR_RETURN(PreparedModel prepared, prepare_model(*open.checkpoint, *open.tokenizer,
                                                                recipe, calibration, progress));
  bool packed_on_disk = false;
  if (const std::optional<nlohmann::json>& manifest = open.checkpoint->manifest()) {
    const JsonFields fields(*manifest, (open.checkpoint->path() / "quarot.json").string());
    QUAROT_ASSIGN_OR_RETURN(packed_on_disk, fields.optional<bool>("packed", false));
  }
  RunnableModel runnable;
  const bool packed = input.execution == "packed" || (input.execution == "auto" && packed_on_disk);
  runnable.execution = packed ? Execution::kPacked : Execution::kSimulated;
  QUAROT_ASSIGN_OR_RETURN(runnable.backend,
                          make_backend(std::move(prepared.model), prepared.recipe.precision,
                                       runnable.execution, device));
  runnable.tokenizer = std::move(open.tokenizer);
  runnable.recipe = std::move(prepared.recipe);
  runnable.calibration = std::move(prepared.calibration);
  return runnable;
}

Result<RunnableModel> open_runnable(const ModelInput& input, const RecipeOptions& options,
                                    Device device, Progress& progress) {
  QUAROT_ASSIGN_OR_RETURN(const Recipe recipe, options.recipe());
  QUAROT_ASSIGN_OR_RETURN(OpenModel open, open_model(input));
  return make_runnable(std::move(open), input, recipe, options.calibration(), device, progress);
}

}  // namespace quarot::cli
