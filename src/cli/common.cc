#include "cli/common.h"

#include <fmt/format.h>
#include <cstdio>

#include "base/error.h"
#include "base/parallel.h"
#include "engine/open_runnable.h"
#include "text/utf8.h"

namespace quarot::cli {

void CommonOptions::add_to(CLI::App& command) {
  command.add_option("--device", device, "where to compute: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--threads", threads, "how many threads (default: one a core)")
      ->check(CLI::Range(1, 4096));
  add_output_to(command);
}

void CommonOptions::add_output_to(CLI::App& command) {
  command.add_flag("--json", json, "print one JSON object instead of text");
  command.add_flag("--quiet", quiet, "no progress, no remarks");
}

Status CommonOptions::apply(bool takes_device) const {
  if (device != "cpu" && !takes_device) {
    return error(ErrorCode::kUnsupported, "--device {}: this command computes on the CPU only",
                 device);
  }
  const Status usable = check_device(compute_device());
  if (!usable.ok()) return usable.error().with_context("--device " + device);
  if (threads > 0) set_thread_count(threads);
  return {};
}

void RecipeOptions::add_to(CLI::App& command, const std::string& default_recipe) {
  command_ = &command;
  name_ = default_recipe;
  std::string names = "a FILE.json, or one of";
  for (const NamedRecipe& row : named_recipes())
    names += fmt::format("\n{}: {}", row.name, row.summary);
  constexpr const char* kGroup = "Recipe";
  const auto add = [&](const char* flag, auto& value, const std::string& text) {
    command.add_option(flag, value, text)->group(kGroup);
  };
  command.add_option("--recipe", name_, names)->capture_default_str()->group(kGroup);
  add("--w-bits", w_bits_, "bits of the weights: 2 to 8, or 16");
  add("--a-bits", a_bits_, "bits of the activations: 2 to 8, or 16");
  add("--k-bits", k_bits_, "bits of the cached keys: 2 to 8, or 16");
  add("--v-bits", v_bits_, "bits of the cached values: 2 to 8, or 16");
  add("--embedding-bits", embedding_bits_, "bits of the embedding: 4 or 8, or 16 for as it is");
  add("--head-bits", head_bits_, "bits of lm_head: 4 or 8, or 16 for as it is");
  add("--site-bits", site_bits_,
      "PLACE[@LAYERS]=BITS, of some sites or linears alone: o_proj=A8, down_proj@0-3,29=W8A8; "
      "places are all, qkv_proj, o_proj, gate_up_proj, down_proj, or one linear (W only)");
  add("--a-budget", a_budget_, "bits of the activations, a multiply-add's average: chooses sites");
  add("--w-budget", w_budget_, "bits of the weights on average: chooses sites, 8 bits for some");
  add("--w-group", w_group_, "inputs that share a weight scale (0: all)");
  add("--a-group", a_group_, "channels that share an activation scale (0: all)");
  add("--w-method", w_method_, "how weights are rounded: rtn or gptq");
  add("--w-clip", w_clip_, "clip of the weights: search, none, a ratio, or outputs (rtn only)");
  add("--a-clip", a_clip_, "clip of the activations: search, for each site, or a ratio");
  add("--kv-clip", kv_clip_, "clip ratio of keys and values");
  add("--center", center_, "subtract the mean before caching: none, k or kv");
  add("--rotate", rotate_, "all, none, or R1,R2,R3,R4; -NAME takes one back");
  add("--basis", basis_, "basis of R1: hadamard, plain-hadamard, random, principal or learned");
  add("--scaling", scaling_, "of channels before rotating: none, balance, smoothquant or awq");
  add("--alpha", alpha_, "exponent of the scaling, 0 to 1, or search: for each site");
  add("--set", fields_, "NAME=VALUE, any field of a recipe's JSON form; may be repeated");
  add("--calibration", calibration_, "text to calibrate on (default: the model writes one)");
  add("--calibration-tokens", calibration_tokens_, "how many tokens of it to use");
  add("--seed", seed_, "seed of everything random: rotations, calibration, sampling");
}

bool RecipeOptions::given() const {
  return std::ranges::any_of(command_->get_options(), [](const CLI::Option* option) {
    return option->get_group() == "Recipe" && option->count() > 0;
  });
}

std::optional<std::filesystem::path> RecipeOptions::calibration() const {
  if (calibration_.empty()) return std::nullopt;
  return std::filesystem::path(calibration_);
}

Result<Recipe> RecipeOptions::recipe() const { return recipe(name_); }

Result<Recipe> RecipeOptions::recipe(const std::string& name) const {
  QUAROT_ASSIGN_OR_RETURN(const Recipe base_recipe, find_recipe(name));
  // The options are the JSON form's fields under other names: one reader checks both.
  nlohmann::json json = base_recipe;
  const auto set = [&](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  set("w_bits", w_bits_);
  set("a_bits", a_bits_);
  set("k_bits", k_bits_);
  set("v_bits", v_bits_);
  set("embedding_bits", embedding_bits_);
  set("head_bits", head_bits_);
  set("w_group", w_group_);
  set("a_group", a_group_);
  set("k_clip", kv_clip_);
  set("v_clip", kv_clip_);
  set("seed", seed_);
  set("calibration_tokens", calibration_tokens_);
  set("gptq_tokens", calibration_tokens_);
  set("a_budget", a_budget_);
  set("w_budget", w_budget_);
  if (!site_bits_.empty()) json["site_bits"] = site_bits_;
  if (!scaling_.empty()) json["scaling"] = scaling_;
  // A number, or the search for one.
  const auto set_searched = [&](const char* flag, const std::string& value, const char* search,
                                const char* number) -> Status {
    if (value.empty()) return {};
    json[search] = value == "search";
    if (double given = 0; CLI::detail::lexical_cast(value, given)) {
      json[number] = given;
    } else if (value != "search") {
      return error(ErrorCode::kInvalidArgument, "{} {}: expected search or a number", flag, value);
    }
    return {};
  };
  QUAROT_RETURN_IF_ERROR(set_searched("--alpha", alpha_, "search_alpha", "alpha"));
  QUAROT_RETURN_IF_ERROR(set_searched("--a-clip", a_clip_, "a_search_clip", "a_clip"));
  if (!center_.empty()) json["center"] = center_;
  if (!w_method_.empty()) json["w_method"] = w_method_;
  if (!basis_.empty()) json["transforms"]["kind"] = basis_;
  if (seed_) json["transforms"]["seed"] = *seed_;
  if (!w_clip_.empty()) {
    json["w_search_clip"] = w_clip_ == "search";
    json["w_clip_by_outputs"] = w_clip_ == "outputs";
    double ratio = 1;
    if (w_clip_ != "search" && w_clip_ != "outputs" && w_clip_ != "none" &&
        !CLI::detail::lexical_cast(w_clip_, ratio)) {
      return error(ErrorCode::kInvalidArgument,
                   "--w-clip {}: expected search, outputs, none or a ratio", w_clip_);
    }
    json["w_clip"] = ratio;
  }
  for (const std::string& field : fields_) {
    if (!is_valid_utf8(field)) {
      return error(ErrorCode::kInvalidArgument, "--set {}: expected UTF-8", lossy_utf8(field));
    }
    const size_t equals = std::min(field.find('='), field.size());
    const std::string value = field.substr(std::min(equals + 1, field.size()));
    const auto parsed = nlohmann::json::parse(value, nullptr, false);
    json[field.substr(0, equals)] = parsed.is_discarded() ? nlohmann::json(value) : parsed;
  }
  QUAROT_ASSIGN_OR_RETURN(Recipe recipe, parse_recipe(json, "recipe options"));
  if (!rotate_.empty()) QUAROT_RETURN_IF_ERROR(set_rotations(rotate_, recipe.transforms));
  return recipe;
}

CLI::Validator at_least(int64_t least) {
  const auto check = [least](const std::string& text) -> std::string {
    int64_t value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least) return "";
    return fmt::format("{}, expected {} or more", text, least);
  };
  return {check, fmt::format(">= {}", least)};
}

void add_command(CLI::App& command, const std::string& examples, Command& selected, Command run) {
  command.footer("Examples:\n" + examples);
  command.callback([&selected, run = std::move(run)] { selected = run; });
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) {
      line += fmt::format("\\x{:02x}", code);
    } else {
      line += c;
    }
  }
  return line;
}

int report(const Error& error) {
  std::fputs(fmt::format("quarot: {}\n", one_line(error.message())).c_str(), stderr);
  if (error.code() == ErrorCode::kCancelled) return kInterrupted;
  return kFailed;
}

void print_json(const nlohmann::json& json) {
  std::fputs((json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n").c_str(),
             stdout);
}

}  // namespace quarot::cli
