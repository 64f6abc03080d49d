#include "recipe/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <set>

#include "kernels/cpu/cache.h"
#include "model/json_fields.h"
#include "quant/e8_lattice.h"
#include "recipe/rivals.h"
#include "runtime/cpu_backend.h"

namespace quarot {

namespace {

constexpr std::array kNamed = {
    NamedRecipe{"float", "nothing rotated, nothing quantised"},
    NamedRecipe{"naive", "W4A4KV4 in the model's own basis"},
    NamedRecipe{"quarot", "W4A4KV4 after the paper's rotations (QuaRot, NeurIPS 2024)"},
    NamedRecipe{"balanced", "W4A4KV4, each site scaled before it is rotated, K and V centred"},
    NamedRecipe{"balanced-gptq", "the same by GPTQ, aiming at the float model's residual stream"},
};

void quantize_to_4_bits(Recipe& recipe) {
  recipe.weights.bits = 4;
  recipe.precision.activations.bits = 4;
  recipe.precision.keys.bits = 4;
  recipe.precision.values.bits = 4;
}

void rotate_everything(TransformSpec& spec) {
  spec.value = spec.heads = spec.query_key = spec.ffn = true;
}

constexpr std::pair<Centering, std::string_view> kCenterings[] = {
    {Centering::kNone, "none"}, {Centering::kKeys, "k"}, {Centering::kKeysAndValues, "kv"}};
constexpr std::pair<Scaling, std::string_view> kScalings[] = {
    {Scaling::kNone, "none"},
    {Scaling::kBalance, "balance"},
    {Scaling::kSmoothQuant, "smoothquant"},
    {Scaling::kAwq, "awq"}};
constexpr std::pair<Incoherence, std::string_view> kIncoherences[] = {
    {Incoherence::kNone, "none"},
    {Incoherence::kRandom, "random"},
    {Incoherence::kHadamard, "hadamard"}};
constexpr std::pair<WeightGrid, std::string_view> kGrids[] = {{WeightGrid::kInteger, "integer"},
                                                              {WeightGrid::kE8, "e8"}};
constexpr std::pair<WeightMethod, std::string_view> kMethods[] = {
    {WeightMethod::kRoundToNearest, "rtn"}, {WeightMethod::kGptq, "gptq"}};

template <typename T, size_t N>
std::string_view name_in(const std::pair<T, std::string_view> (&table)[N], T value) {
  return std::ranges::find(table, value, &std::pair<T, std::string_view>::first)->second;
}

template <typename T, size_t N>
Result<T> value_in(const std::pair<T, std::string_view> (&table)[N], const std::string& name,
                   const std::string& where) {
  const auto row =
      std::ranges::find(table, std::string_view(name), &std::pair<T, std::string_view>::second);
  if (row != std::end(table)) return row->first;
  std::vector<std::string_view> known;
  for (const auto& [value, known_name] : table) known.push_back(known_name);
  return error(ErrorCode::kInvalidArgument, "{}: \"{}\" is not one of {}", where, name,
               fmt::join(known, ", "));
}

template <typename T, size_t N>
Status read_choice(const JsonFields& fields, const char* field,
                   const std::pair<T, std::string_view> (&table)[N], T& value) {
  QUAROT_ASSIGN_OR_RETURN(const std::string name,
                          fields.optional<std::string>(field, std::string(name_in(table, value))));
  QUAROT_ASSIGN_OR_RETURN(value, value_in(table, name, fields.where() + ": " + field));
  return {};
}

// The numbers of a recipe by their JSON names: one list for reading and writing.
template <typename Visitor>
Status visit_numbers(Recipe& r, Visitor&& visit) {
  ActivationQuant& a = r.precision.activations;
  QUAROT_RETURN_IF_ERROR(visit("w_bits", r.weights.bits));
  QUAROT_RETURN_IF_ERROR(visit("w_group", r.weights.group));
  QUAROT_RETURN_IF_ERROR(visit("w_symmetric", r.weights.symmetric));
  QUAROT_RETURN_IF_ERROR(visit("w_search_clip", r.weights.search_clip));
  QUAROT_RETURN_IF_ERROR(visit("w_clip", r.weights.clip));
  QUAROT_RETURN_IF_ERROR(visit("w_clip_by_outputs", r.clip_by_outputs));
  QUAROT_RETURN_IF_ERROR(visit("a_bits", a.bits));
  QUAROT_RETURN_IF_ERROR(visit("a_group", a.group));
  QUAROT_RETURN_IF_ERROR(visit("a_symmetric", a.symmetric));
  QUAROT_RETURN_IF_ERROR(visit("a_search_clip", a.search_clip));
  QUAROT_RETURN_IF_ERROR(visit("a_clip", a.clip));
  QUAROT_RETURN_IF_ERROR(visit("k_bits", r.precision.keys.bits));
  QUAROT_RETURN_IF_ERROR(visit("v_bits", r.precision.values.bits));
  QUAROT_RETURN_IF_ERROR(visit("k_clip", r.precision.keys.clip));
  QUAROT_RETURN_IF_ERROR(visit("v_clip", r.precision.values.clip));
  QUAROT_RETURN_IF_ERROR(visit("kv_group", r.precision.keys.group));
  QUAROT_RETURN_IF_ERROR(visit("k_by_channel", r.precision.pages.keys_by_channel));
  QUAROT_RETURN_IF_ERROR(visit("k_before_rope", r.precision.pages.keys_before_rope));
  QUAROT_RETURN_IF_ERROR(visit("kv_recent", r.precision.pages.recent));
  QUAROT_RETURN_IF_ERROR(visit("kv_outliers", r.precision.pages.outliers));
  QUAROT_RETURN_IF_ERROR(visit("online_half", r.precision.half_online));
  QUAROT_RETURN_IF_ERROR(visit("keep_channels", r.precision.kept.count));
  QUAROT_RETURN_IF_ERROR(visit("keep_threshold", r.precision.kept.threshold));
  QUAROT_RETURN_IF_ERROR(visit("keep_bits", r.precision.kept.bits));
  QUAROT_RETURN_IF_ERROR(visit("keep_sorted", r.precision.kept.sorted));
  QUAROT_RETURN_IF_ERROR(visit("a_budget", r.a_budget));
  QUAROT_RETURN_IF_ERROR(visit("w_budget", r.w_budget));
  QUAROT_RETURN_IF_ERROR(visit("fit_groups", r.fit_groups));
  QUAROT_RETURN_IF_ERROR(visit("embedding_bits", r.embedding_bits));
  QUAROT_RETURN_IF_ERROR(visit("head_bits", r.head_bits));
  QUAROT_RETURN_IF_ERROR(visit("alpha", r.scaling.alpha));
  QUAROT_RETURN_IF_ERROR(visit("search_alpha", r.scaling.search));
  QUAROT_RETURN_IF_ERROR(visit("scale_norms_only", r.scaling.norms_only));
  QUAROT_RETURN_IF_ERROR(visit("gptq_damp", r.gptq.damp));
  QUAROT_RETURN_IF_ERROR(visit("gptq_act_order", r.gptq.act_order));
  QUAROT_RETURN_IF_ERROR(visit("gptq_quantized_inputs", r.gptq_quantized_inputs));
  QUAROT_RETURN_IF_ERROR(visit("gptq_residual", r.gptq_residual));
  QUAROT_RETURN_IF_ERROR(visit("gptq_tokens", r.gptq_tokens));
  QUAROT_RETURN_IF_ERROR(visit("calibration_tokens", r.calibration_tokens));
  r.precision.values.group = r.precision.keys.group;
  return {};
}

class Reader {
 public:
  explicit Reader(const JsonFields& fields) : fields_(&fields) {}
  Status operator()(const char* name, bool& value) const { return read<bool>(name, value); }
  Status operator()(const char* name, int64_t& value) const { return read<int64_t>(name, value); }
  Status operator()(const char* name, double& value) const { return read<double>(name, value); }
  Status operator()(const char* name, float& value) const { return read<double>(name, value); }
  Status operator()(const char* name, int& value) const {
    int64_t wide = value;
    QUAROT_RETURN_IF_ERROR(read<int64_t>(name, wide));
    if (wide < 0 || wide > 64) {
      return error(ErrorCode::kInvalidArgument, "{}: \"{}\" is {}, expected 2 to 8, or 16",
                   fields_->where(), name, wide);
    }
    value = static_cast<int>(wide);
    return {};
  }

 private:
  template <typename Stored, typename T>
  Status read(const char* name, T& value) const {
    QUAROT_ASSIGN_OR_RETURN(const Stored stored,
                            fields_->optional<Stored>(name, static_cast<Stored>(value)));
    value = static_cast<T>(stored);
    return {};
  }
  const JsonFields* fields_;
};

Status set_rotation(std::string_view name, bool on, TransformSpec& spec) {
  if (name == "R1") {
    (spec.norm_output ? spec.norm_output : spec.residual) = on;
  } else if (name == "R2") {
    spec.value = spec.heads = on;
  } else if (name == "R3") {
    spec.query_key = on;
  } else if (name == "R4") {
    spec.ffn = on;
  } else if (name == "heads") {
    spec.heads = on;
  } else if (name == "norm") {
    spec.norm_output = on;
    if (on) spec.residual = false;
  } else {
    return error(
        ErrorCode::kInvalidArgument,
        "rotation \"{}\" is unknown; expected all, none, or names from R1, R2, R3, R4, norm, heads",
        name);
  }
  return {};
}

// The recipe's own, and those that rules give.
std::string bits_in(const Recipe& recipe, int own, double budget, int BitsRule::*of_rule) {
  std::set<int> all = {own};
  if (budget > 0) all.insert(8);
  for (const BitsRule& rule : recipe.site_bits) {
    if (rule.*of_rule > 0) all.insert(rule.*of_rule);
  }
  return fmt::format("{}", fmt::join(all, "/"));
}

Status check_site_bits(const Recipe& recipe, const ModelConfig& config) {
  QUAROT_RETURN_IF_ERROR(check(recipe.site_bits, config));
  for (const BitsRule& rule : recipe.site_bits) {
    for (const auto& [what, own, all] :
         {std::tuple("w_bits", rule.weights, recipe.weights.bits),
          {"a_bits", rule.activations, recipe.precision.activations.bits}}) {
      if (own == 0 || all < kFloatBits) continue;
      return error(ErrorCode::kInvalidArgument,
                   "site_bits \"{}\" is in place of {}, which is 16; choose 2 to 8 there",
                   to_text(rule), what);
    }
  }
  for (const auto& [name, budget, bits] :
       {std::tuple("w_budget", recipe.w_budget, recipe.weights.bits),
        {"a_budget", recipe.a_budget, recipe.precision.activations.bits}}) {
    if (budget == 0) continue;
    if (!(bits < 8 && budget >= bits && budget <= 8)) {
      return error(ErrorCode::kInvalidArgument,
                   "{} is {} where the others have {} bits: expected fewer than 8 there and a "
                   "budget from them to 8",
                   name, budget, bits);
    }
    if (!recipe.site_bits.empty()) {
      return error(ErrorCode::kInvalidArgument,
                   "{} chooses the sites that get 8 bits, and site_bits names them: choose one",
                   name);
    }
  }
  return {};
}

// Of weights that are rounded to something else than integers in the bases of their spaces.
Status check_floats(const Recipe& recipe, const ModelConfig& config) {
  if (recipe.incoherence != Incoherence::kNone &&
      (recipe.precision.activations.enabled() || recipe.precision.kept.enabled())) {
    return error(ErrorCode::kInvalidArgument,
                 "w_incoherence turns float activations before each product: choose a_bits 16 and "
                 "keep no channels");
  }
  if (recipe.grid == WeightGrid::kInteger) return {};
  if (!recipe.site_bits.empty() || recipe.w_budget > 0 || recipe.weights.bits != 2 ||
      recipe.weights.group != 0 || recipe.clip_by_outputs) {
    return error(ErrorCode::kInvalidArgument,
                 "w_grid e8 is of 2 bits with a scale a row: choose w_bits 2, w_group 0, no "
                 "w_clip_by_outputs, and no site_bits");
  }
  for (const Space site : kSites) {
    const int64_t width = config.width(site);
    const int64_t rest = width - kept_count(recipe.precision.kept, width, group_unit(recipe));
    if (rest % kE8Width == 0) continue;
    return error(ErrorCode::kInvalidArgument,
                 "w_grid e8 rounds {} weights at once, which do not divide {} at the {}", kE8Width,
                 rest, space_name(site));
  }
  return {};
}

}  // namespace

std::vector<NamedRecipe> named_recipes() {
  std::vector<NamedRecipe> named(kNamed.begin(), kNamed.end());
  for (const Rival& rival : rivals()) named.push_back(rival.named);
  return named;
}

Result<Recipe> recipe_by_name(std::string_view name) {
  Recipe recipe;
  recipe.name = name;
  if (name == "float") return recipe;
  for (const Rival& rival : rivals()) {
    if (name != rival.named.name) continue;
    rival.choose(recipe);
    return recipe;
  }
  quantize_to_4_bits(recipe);
  if (name == "naive") return recipe;
  rotate_everything(recipe.transforms);
  if (name == "quarot") {
    recipe.transforms.residual = true;
    return recipe;
  }
  recipe.transforms.norm_output = true;
  recipe.scaling.method = Scaling::kBalance;
  recipe.center = Centering::kKeysAndValues;
  recipe.precision.activations.clip = 0.85F;
  if (name == "balanced") return recipe;
  if (name == "balanced-gptq") {
    recipe.weight_method = WeightMethod::kGptq;
    recipe.gptq_quantized_inputs = true;
    recipe.gptq_residual = 0.5;
    recipe.precision.activations.search_clip = true;
    return recipe;
  }
  std::vector<std::string_view> known;
  for (const NamedRecipe& row : named_recipes()) known.push_back(row.name);
  return error(ErrorCode::kNotFound, "no recipe \"{}\"; there are {}, or a .json file", name,
               fmt::join(known, ", "));
}

void to_json(nlohmann::json& json, const Recipe& recipe) {
  json = {{"name", recipe.name},
          {"transforms", recipe.transforms},
          {"scaling", name_in(kScalings, recipe.scaling.method)},
          {"center", name_in(kCenterings, recipe.center)},
          {"w_grid", name_in(kGrids, recipe.grid)},
          {"w_incoherence", name_in(kIncoherences, recipe.incoherence)},
          {"w_method", name_in(kMethods, recipe.weight_method)},
          {"site_bits", nlohmann::json::array()},
          {"seed", recipe.seed}};
  for (const BitsRule& rule : recipe.site_bits) json["site_bits"].push_back(to_text(rule));
  Recipe copy = recipe;
  (void)visit_numbers(copy, [&](const char* name, const auto& value) -> Status {
    json[name] = value;
    return {};
  });
}

Result<Recipe> parse_recipe(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object())
    return error(ErrorCode::kInvalidArgument, "{}: expected a JSON object", where);
  const JsonFields fields(json, where);
  nlohmann::json known = Recipe();
  known["base"] = "";
  QUAROT_RETURN_IF_ERROR(fields.check_names(known, "a recipe"));
  QUAROT_ASSIGN_OR_RETURN(const auto given_base, fields.optional<std::string>("base"));
  QUAROT_ASSIGN_OR_RETURN(const std::string name,
                          fields.optional<std::string>("name", given_base.value_or("float")));
  const std::string base = given_base.value_or(name);
  Result<Recipe> found = recipe_by_name(base);
  if (!found.ok() && fields.has("base")) return found.error().with_context(where);
  Recipe recipe = found.ok() ? *std::move(found) : Recipe();
  recipe.name = name;
  QUAROT_RETURN_IF_ERROR(visit_numbers(recipe, Reader(fields)));
  QUAROT_RETURN_IF_ERROR(read_choice(fields, "scaling", kScalings, recipe.scaling.method));
  QUAROT_RETURN_IF_ERROR(read_choice(fields, "center", kCenterings, recipe.center));
  QUAROT_RETURN_IF_ERROR(read_choice(fields, "w_grid", kGrids, recipe.grid));
  QUAROT_RETURN_IF_ERROR(read_choice(fields, "w_incoherence", kIncoherences, recipe.incoherence));
  QUAROT_RETURN_IF_ERROR(read_choice(fields, "w_method", kMethods, recipe.weight_method));
  QUAROT_ASSIGN_OR_RETURN(recipe.seed, fields.optional<uint64_t>("seed", recipe.seed));
  if (fields.has("site_bits")) {
    QUAROT_ASSIGN_OR_RETURN(const auto rules,
                            fields.optional<std::vector<std::string>>("site_bits"));
    recipe.site_bits.clear();
    for (const std::string& rule : *rules) {
      const Result<BitsRule> parsed = parse_bits_rule(rule);
      if (!parsed.ok()) return parsed.error().with_context(where);
      recipe.site_bits.push_back(*parsed);
    }
  }
  if (fields.has("transforms")) {
    QUAROT_ASSIGN_OR_RETURN(
        recipe.transforms,
        parse_transform_spec(json["transforms"], where + ": transforms", recipe.transforms));
  }
  return recipe;
}

Status set_rotations(std::string_view list, TransformSpec& spec) {
  const bool norm_output = spec.norm_output;
  const auto clear = [&] {
    spec.residual = spec.norm_output = spec.value = spec.heads = spec.query_key = spec.ffn = false;
  };
  bool first = true;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view name = list.substr(0, comma);
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    const bool on = !name.starts_with('-');
    if (!on) name.remove_prefix(1);
    if (first && on) clear();
    first = false;
    if (name == "none" && on) continue;
    if (name == "all" && on) {
      rotate_everything(spec);
      (norm_output ? spec.norm_output : spec.residual) = true;
      continue;
    }
    if (name == "R1" && on && norm_output) name = "norm";
    QUAROT_RETURN_IF_ERROR(set_rotation(name, on, spec));
  }
  return {};
}

std::string bits_label(const Recipe& recipe) {
  const int k = recipe.precision.keys.bits;
  const int v = recipe.precision.values.bits;
  const std::string cache = k == v ? fmt::format("KV{}", k) : fmt::format("K{}V{}", k, v);
  std::string tables;
  if (recipe.embedding_bits != kFloatBits) tables += fmt::format("E{}", recipe.embedding_bits);
  if (recipe.head_bits != kFloatBits) tables += fmt::format("H{}", recipe.head_bits);
  return fmt::format(
      "W{}A{}{}{}", bits_in(recipe, recipe.weights.bits, recipe.w_budget, &BitsRule::weights),
      bits_in(recipe, recipe.precision.activations.bits, recipe.a_budget, &BitsRule::activations),
      cache, tables);
}

Status set_bits(const std::string& label, Recipe& recipe) {
  nlohmann::json json = recipe;
  json["k_bits"] = json["v_bits"] = kFloatBits;
  std::string_view rest = label;
  const auto take = [&](std::string_view letters, std::initializer_list<const char*> fields) {
    if (!rest.starts_with(letters)) return false;
    const std::string_view digits = rest.substr(letters.size(), 2);
    int bits = 0;
    const char* end = std::from_chars(digits.data(), digits.data() + digits.size(), bits).ptr;
    if (end == digits.data()) return false;
    for (const char* field : fields) json[field] = bits;
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    return true;
  };
  const bool linears = take("W", {"w_bits"}) && take("A", {"a_bits"});
  const bool cache =
      take("KV", {"k_bits", "v_bits"}) || !take("K", {"k_bits"}) || take("V", {"v_bits"});
  take("E", {"embedding_bits"});
  take("H", {"head_bits"});
  if (!linears || !cache || !rest.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "bits \"{}\": expected W4A4KV4, W4A8K4V3 or W4A8, with E8 or H8 after it for the "
                 "embedding and lm_head",
                 label);
  }
  QUAROT_ASSIGN_OR_RETURN(recipe, parse_recipe(json, label));
  return {};
}

Recipe fitted(Recipe recipe, const ModelConfig& config) {
  if (!recipe.fit_groups) return recipe;
  const KeptChannels& kept = recipe.precision.kept;
  const auto fit = [](int64_t width, const KeptChannels& around, int64_t& group) {
    const auto fits = [&] {
      return width % group == 0 && (around.count == 0 || kept_count(around, width, group) > 0);
    };
    while (group > 1 && !fits()) group /= 2;
  };
  for (const Space site : kSites) {
    fit(config.width(site), kept, recipe.weights.group);
    fit(config.width(site), kept, recipe.precision.activations.group);
  }
  fit(config.head_dim, {}, recipe.precision.keys.group);
  fit(config.head_dim, {}, recipe.precision.values.group);
  return recipe;
}

WeightQuant weights_of(const Recipe& recipe, int64_t layer, Role role) {
  WeightQuant weights = recipe.weights;
  const int own = bits_of(recipe.site_bits, layer).weights[static_cast<size_t>(role)];
  if (own > 0) weights.bits = own;
  return weights;
}

int64_t group_unit(const Recipe& recipe) {
  return std::lcm(std::max<int64_t>(recipe.weights.group, 1),
                  std::max<int64_t>(recipe.precision.activations.group, 1));
}

Status check(const Recipe& recipe, const ModelConfig& config) {
  for (const Role role : kRoles) {
    const RoleSpaces spaces = spaces_of(role);
    const int64_t width = config.width(spaces.input);
    for (const Status& status :
         {check(recipe.weights, width), check(recipe.precision.activations, width),
          check(recipe.precision.kept, width, group_unit(recipe))}) {
      if (!status.ok()) return status.error().with_context(std::string(spaces.name));
    }
  }
  for (const auto& [what, bits] :
       {std::pair("embedding", recipe.embedding_bits), {"lm_head", recipe.head_bits}}) {
    if (bits == 4 || bits == 8 || bits == kFloatBits) continue;
    return error(ErrorCode::kInvalidArgument, "{}: {} bits; choose 4, 8, or {} to keep it as it is",
                 what, bits, kFloatBits);
  }
  QUAROT_RETURN_IF_ERROR(check(recipe.precision.keys, config.head_dim));
  QUAROT_RETURN_IF_ERROR(check(recipe.precision.values, config.head_dim));
  if (recipe.transforms.norm_output && (recipe.transforms.kind == BasisKind::kPrincipal ||
                                        recipe.transforms.kind == BasisKind::kLearned)) {
    return error(ErrorCode::kInvalidArgument,
                 "principal components and learned bases are of the residual stream: choose R1 in "
                 "place of norm, or another basis");
  }
  QUAROT_RETURN_IF_ERROR(check_site_bits(recipe, config));
  if (recipe.leaves_floats()) QUAROT_RETURN_IF_ERROR(check_floats(recipe, config));
  if (recipe.uses_gptq()) {
    QUAROT_RETURN_IF_ERROR(check(recipe.gptq));
    if (recipe.clip_by_outputs) {
      return error(ErrorCode::kInvalidArgument,
                   "w_clip_by_outputs is for rounding to the nearest: choose w_method rtn, or "
                   "another w_clip");
    }
  }
  QUAROT_RETURN_IF_ERROR(check(recipe.precision.pages, kPageTokens));
  if (recipe.precision.pages.keys_before_rope &&
      (recipe.transforms.query_key || recipe.center != Centering::kNone)) {
    return error(ErrorCode::kInvalidArgument,
                 "keys quantised before RoPE can be neither rotated by R3 nor centred after it; "
                 "choose --rotate -R3 and --center none");
  }
  QUAROT_RETURN_IF_ERROR(cpu::check(cache_layout(config, recipe.precision)));
  if (!(recipe.scaling.alpha >= 0 && recipe.scaling.alpha <= 1)) {
    return error(ErrorCode::kInvalidArgument, "alpha is {}, expected 0 to 1", recipe.scaling.alpha);
  }
  if (!(recipe.gptq_residual >= 0 && recipe.gptq_residual <= 1)) {
    return error(ErrorCode::kInvalidArgument, "gptq_residual is {}, expected 0 to 1",
                 recipe.gptq_residual);
  }
  if (recipe.calibration_tokens < 1 || recipe.gptq_tokens < 1) {
    return error(ErrorCode::kInvalidArgument,
                 "calibration_tokens is {} and gptq_tokens {}, expected 1 or more",
                 recipe.calibration_tokens, recipe.gptq_tokens);
  }
  return {};
}

}  // namespace quarot
