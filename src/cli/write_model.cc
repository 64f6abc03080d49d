// quarot rotate and quarot quantize: models written to disk.
#include <cstdio>

#include "base/error.h"
#include "base/memory.h"
#include "cli/common.h"
#include "cli/model_input.h"
#include "recipe/artifact.h"

namespace quarot::cli {

namespace {

struct WriteOptions {
  ModelInput model;
  CommonOptions common;
  RecipeOptions recipe;
  std::string output;
  std::string dtype;
  bool pack = false;
};

Result<Dtype> matrix_dtype(const std::string& name) {
  if (name == "f32") return Dtype::kF32;
  if (name == "f16") return Dtype::kF16;
  if (name == "bf16") return Dtype::kBF16;
  return error(ErrorCode::kInvalidArgument, "--dtype {}: expected f32, f16 or bf16", name);
}

// Rotating leaves everything in float, whatever bits the recipe would use.
Recipe without_quantisers(Recipe recipe) {
  recipe.weights.bits = kFloatBits;
  recipe.precision = Precision();
  recipe.embedding_bits = recipe.head_bits = kFloatBits;
  return recipe;
}

Status write(const WriteOptions& options) {
  QUAROT_RETURN_IF_ERROR(options.common.apply(true));
  QUAROT_ASSIGN_OR_RETURN(Recipe recipe, options.recipe.recipe());
  if (!options.pack) recipe = without_quantisers(recipe);
  ArtifactOptions artifact;
  artifact.pack = options.pack;
  artifact.calibration = options.recipe.calibration();
  artifact.device = options.common.compute_device();
  QUAROT_ASSIGN_OR_RETURN(artifact.matrices, matrix_dtype(options.dtype));
  QUAROT_ASSIGN_OR_RETURN(const OpenModel open, open_model(options.model.path));
  Result<ArtifactReport> written = [&] {
    TerminalProgress progress(options.common.quiet);
    return write_artifact(*open.checkpoint, *open.tokenizer, recipe, artifact, options.output,
                          progress);
  }();
  if (!written.ok()) return written.error();
  if (options.common.json) {
    print_json({{"output", options.output},
                {"recipe", recipe},
                {"bytes", written->bytes},
                {"resumed_layers", written->resumed_layers},
                {"peak_bytes", peak_resident_bytes()}});
  } else if (!options.common.quiet) {
    std::fputs(fmt::format("{}: {}, recipe {} ({})\n", options.output,
                           format_bytes(static_cast<double>(written->bytes)), recipe.name,
                           bits_label(recipe))
                   .c_str(),
               stdout);
  }
  return {};
}

void add_writer(CLI::App& command, const char* recipe, const char* dtype, bool pack,
                const std::string& examples, Command& selected) {
  auto options = std::make_shared<WriteOptions>();
  options->pack = pack;
  options->dtype = dtype;
  options->model.add_to(command);
  command.add_option("-o,--output", options->output, "the folder to write; must not exist")
      ->required();
  command.add_option("--dtype", options->dtype, "of the matrices left in float: f32, f16 or bf16")
      ->capture_default_str();
  options->recipe.add_to(command, recipe);
  options->common.add_to(command);
  add_command(command, examples, selected, [options] {
    const Status status = write(*options);
    return status.ok() ? kDone : report(status.error());
  });
}

}  // namespace

void add_rotate(CLI::App& app, Command& selected) {
  CLI::App* command = app.add_subcommand(
      "rotate", "Write a float model in a new basis: the same function, no outliers");
  add_writer(*command, "quarot", "f32", false,
             "  quarot rotate model.gguf -o rotated\n"
             "  quarot rotate model/ -o rotated --rotate R1,R2,-heads --dtype bf16   # fused only: "
             "opens anywhere",
             selected);
}

void add_quantize(CLI::App& app, Command& selected) {
  CLI::App* command =
      app.add_subcommand("quantize", "Write a model with packed 4- or 8-bit weights");
  add_writer(*command, "balanced", "f16", true,
             "  quarot quantize model.gguf -o model-w4\n"
             "  quarot quantize model/ -o model-w4a8 --a-bits 8 --calibration train.txt",
             selected);
}

}  // namespace quarot::cli
