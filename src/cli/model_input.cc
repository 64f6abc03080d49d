#include "cli/model_input.h"

#include "base/error.h"

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

Result<RunnableModel> open_runnable(const ModelInput& input, const Recipe& recipe,
                                    const std::optional<std::filesystem::path>& calibration,
                                    Progress& progress) {
  QUAROT_ASSIGN_OR_RETURN(OpenModel open, open_model(input));
  RunnableModel runnable;
  QUAROT_ASSIGN_OR_RETURN(runnable.prepared, prepare_model(*open.checkpoint, *open.tokenizer,
                                                           recipe, calibration, progress));
  runnable.tokenizer = std::move(open.tokenizer);
  return runnable;
}

}  // namespace quarot::cli
