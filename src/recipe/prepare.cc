#include "recipe/prepare.h"

#include "base/error.h"
#include "base/mapped_file.h"
#include "quarot/version.h"
#include "recipe/choose_bits.h"
#include "recipe/residual_basis.h"

namespace quarot {

namespace {

std::optional<Token> leading_bos(const Tokenizer& tokenizer) {
  return tokenizer.adds_bos() ? tokenizer.bos() : std::nullopt;
}

// The activations' bits are told by the recipe alone; the weights tell their own.
NextLayer with_site_bits(const Recipe& recipe, NextLayer layers) {
  return [rules = recipe.site_bits, layers = std::move(layers),
          index = int64_t{0}]() mutable -> Result<Layer> {
    QUAROT_ASSIGN_OR_RETURN(Layer layer, layers());
    layer.activation_bits = bits_of(rules, index++).activations;
    return layer;
  };
}

}  // namespace

Result<std::vector<std::vector<Token>>> calibration_windows(
    const Recipe& recipe, const Checkpoint& checkpoint, const Tokenizer& tokenizer,
    const std::optional<std::filesystem::path>& text, Progress& progress) {
  const std::optional<Token> bos = leading_bos(tokenizer);
  if (!text) {
    progress.stage("loading", 1);
    QUAROT_ASSIGN_OR_RETURN(const Model model, load_model(checkpoint));
    return self_generated_windows(model, bos, recipe.calibration_tokens, recipe.seed, progress);
  }
  QUAROT_ASSIGN_OR_RETURN(const ModelConfig config,
                          parse_config(checkpoint.config(), checkpoint.path().string()));
  QUAROT_ASSIGN_OR_RETURN(const std::string contents, read_text_file(*text));
  const std::vector<Token> tokens = tokenizer.encode(contents);
  if (tokens.empty()) {
    return error(ErrorCode::kInvalidArgument, "{}: the calibration text is empty", text->string());
  }
  const int64_t window = std::min<int64_t>(2048, config.max_positions);
  const int64_t wanted = recipe.uses_hessians()
                             ? std::max(recipe.gptq_tokens, recipe.calibration_tokens)
                             : recipe.calibration_tokens;
  return sample_windows(tokens, wanted, window, bos, recipe.seed);
}

std::string calibration_source(const Recipe& recipe,
                               const std::optional<std::filesystem::path>& text) {
  if (!recipe.calibrates()) return "";
  return text ? text->string() : "text the model wrote itself";
}

bool same_weights(const Recipe& a, const Recipe& b) {
  // What rounds, scales or clips with an eye on the quantised activations.
  const bool looks = (b.uses_hessians() && b.gptq_quantized_inputs) || b.scaling.search ||
                     a.searches_clips() || b.searches_clips() || a.precision.kept.enabled() ||
                     b.precision.kept.enabled();
  if (looks && a.precision != b.precision) return false;
  Recipe other = b;
  other.name = a.name;
  other.precision = a.precision;
  return nlohmann::json(a) == nlohmann::json(other);
}

Result<Recipe> recipe_of(const Checkpoint& checkpoint) {
  if (!checkpoint.manifest()) return Recipe();
  const std::string where = (checkpoint.path() / "quarot.json").string();
  const auto recipe = checkpoint.manifest()->find("recipe");
  if (recipe == checkpoint.manifest()->end()) {
    return error(ErrorCode::kCorrupt, "{}: \"recipe\" is missing", where);
  }
  Result<Recipe> parsed = parse_recipe(*recipe, "recipe");
  if (parsed.ok()) return parsed;
  const auto writer = checkpoint.manifest()->find("quarot_version");
  const bool known = writer != checkpoint.manifest()->end() && writer->is_string();
  return parsed.error().with_context(
      fmt::format("{}: written by quarot {}, with a recipe that this one, {}, does not read; write "
                  "the model again from the original",
                  where, known ? writer->get<std::string>() : "of another version", version()));
}

Result<PreparedModel> prepare_outer(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                    const Recipe& recipe,
                                    const std::optional<std::filesystem::path>& calibration,
                                    Progress& progress, Device device) {
  PreparedModel prepared;
  QUAROT_ASSIGN_OR_RETURN(prepared.recipe, recipe_of(checkpoint));
  const bool treated = checkpoint.manifest().has_value();
  if (treated && !(recipe.is_float() && !recipe.transforms.any())) {
    return error(ErrorCode::kInvalidArgument,
                 "{}: this model carries the recipe \"{}\" already; give the original model to "
                 "apply another",
                 checkpoint.path().string(), prepared.recipe.name);
  }
  if (treated) {
    progress.stage("loading", 1);
    QUAROT_ASSIGN_OR_RETURN(prepared.model, load_outer(checkpoint));
    // A stranger may have written it.
    const Status fits = check(prepared.recipe, prepared.model.config);
    if (!fits.ok()) return fits.error().with_context((checkpoint.path() / "quarot.json").string());
    const ModelConfig& config = prepared.model.config;
    progress.stage("loading", config.layers);
    prepared.next_layer =
        observed(with_site_bits(prepared.recipe, layers_of(checkpoint, config)), progress);
    return prepared;
  }
  QUAROT_ASSIGN_OR_RETURN(const ModelConfig config,
                          parse_config(checkpoint.config(), checkpoint.path().string()));
  prepared.recipe = fitted(recipe, config);
  prepared.calibration = calibration_source(recipe, calibration);
  QUAROT_RETURN_IF_ERROR(check(prepared.recipe, config));
  std::vector<std::vector<Token>> windows;
  if (recipe.calibrates()) {
    QUAROT_ASSIGN_OR_RETURN(
        windows, calibration_windows(recipe, checkpoint, tokenizer, calibration, progress));
  }
  QUAROT_ASSIGN_OR_RETURN(prepared.model, load_outer(checkpoint));
  const auto embed = [&](std::span<const Token> tokens) {
    return Result<Matrix>(embedding_rows(prepared.model.embedding, tokens));
  };
  QUAROT_ASSIGN_OR_RETURN(const std::optional<Orthogonal> found,
                          residual_basis(prepared.recipe, config, windows, embed,
                                         layers_of(checkpoint, config), progress, device));
  QUAROT_ASSIGN_OR_RETURN(prepared.recipe,
                          choose_bits(prepared.recipe, config, windows, embed,
                                      layers_of(checkpoint, config), progress, device, found));
  QUAROT_ASSIGN_OR_RETURN(FinishedLayers layers,
                          quantize_model(prepared.recipe, windows, layers_of(checkpoint, config),
                                         prepared.model, progress, device, found));
  prepared.next_layer = std::move(layers.next);
  prepared.reports = std::move(layers.reports);
  return prepared;
}

Result<PreparedModel> prepare_model(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                    const Recipe& recipe,
                                    const std::optional<std::filesystem::path>& calibration,
                                    Progress& progress, Device device) {
  QUAROT_ASSIGN_OR_RETURN(PreparedModel prepared, prepare_outer(checkpoint, tokenizer, recipe,
                                                                calibration, progress, device));
  QUAROT_RETURN_IF_ERROR(complete(prepared.model, prepared.next_layer));
  return prepared;
}

}  // namespace quarot
