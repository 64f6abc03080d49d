#include "cli/model_input.h"

#include "base/error.h"

namespace quarot::cli {

void ModelInput::add_to(CLI::App& command) {
  command.add_option("MODEL", path, kModelHelp)->required();
}

void ModelInput::add_execution_to(CLI::App& command) {
  command
      .add_option(
          "--execution", execution,
          "packed: integers; simulated: float with simulated quantisers; auto: packed where "
          "the model has such a form")
      ->check(CLI::IsMember({"auto", "packed", "simulated"}))
      ->capture_default_str();
}

Execution ModelInput::chosen_execution() const {
  if (execution == "auto") return Execution::kAutomatic;
  return execution == "packed" ? Execution::kPacked : Execution::kSimulated;
}

Result<RunnableModel> open_runnable(const ModelInput& input, const RecipeOptions& options,
                                    Device device, Progress& progress) {
  QUAROT_ASSIGN_OR_RETURN(const Recipe recipe, options.recipe());
  QUAROT_ASSIGN_OR_RETURN(OpenModel open, open_model(input.path));
  return make_runnable(std::move(open), recipe, input.chosen_execution(), device,
                       options.calibration(), progress);
}

}  // namespace quarot::cli
