// quarot inspect: what a file is, how each width's Hadamard is made, bytes now and after.
#include <fmt/ranges.h>
#include <cstdio>
#include <set>

#include "base/error.h"
#include "cli/common.h"
#include "cli/model_input.h"
#include "cli/table.h"
#include "recipe/storage_cost.h"
#include "runtime/cpu_backend.h"

namespace quarot::cli {

namespace {

struct Width {
  std::string what;
  int64_t size;
  std::string made;  // of what
  bool is_hadamard;
};

std::vector<Width> widths_of(const ModelConfig& config) {
  std::vector<Width> widths;
  const auto add = [&](std::string what, int64_t n) {
    const HadamardPlan plan = plan_hadamard(n);
    widths.push_back({std::move(what), n, plan.description, plan.is_hadamard});
  };
  add("residual stream (R1)", config.hidden);
  add("head (R2, R3)", config.head_dim);
  const Orthogonal heads = cross_head_hadamard(config.heads, config.head_dim);
  const std::optional<Orthogonal::Fast> fast = heads.fast();
  widths.push_back({fmt::format("across {} heads", config.heads), config.heads * config.head_dim,
                    heads.description(), !fast || fast->plan->is_hadamard});
  add("FFN hidden (R4)", config.ffn);
  return widths;
}

// Bytes a model takes with weights of `bits` in the layers (a float scale an output channel) and 16
// bits elsewhere.
double model_bytes(const ModelConfig& config, int bits) {
  double layer = 0;
  for (const Role role : kRoles) {
    const auto in = static_cast<double>(config.width(spaces_of(role).input));
    const auto out = static_cast<double>(config.width(spaces_of(role).output));
    layer += in * out * bits / 8 + (bits < kFloatBits ? 4 * out : 0);
  }
  const double matrices = config.tied_embeddings ? 1 : 2;
  return static_cast<double>(config.layers) * layer +
         matrices * static_cast<double>(config.vocab * config.hidden) * 2;
}

// Bytes of K and V a token, in pages as they are held.
double cache_bytes(const ModelConfig& config, const Precision& precision) {
  const int64_t heads = config.layers * config.kv_heads;
  return static_cast<double>(cache_layout(config, precision).page_bytes() * heads) / kPageTokens;
}
double cache_bytes_fp16(const ModelConfig& config) {
  return 4.0 * static_cast<double>(config.layers * config.width(Space::kKey));
}
Precision kv4() {
  Precision precision;
  precision.keys.bits = precision.values.bits = 4;
  return precision;
}

// What a matrix of a model that quarot wrote is stored as.
std::string stored_as(const TensorSource& tensors, const std::string& name, int64_t cols) {
  if (const TensorInfo* packed = tensors.find(name + "_packed"); packed != nullptr)
    return fmt::format("{} bits", packed->shape.back() * 32 / cols);
  const TensorInfo* info = tensors.find(name);
  return info == nullptr ? "nothing of its own" : info->type;
}

std::string weights_text(const TensorSource& tensors, const ModelConfig& config) {
  std::set<std::string> layers;
  for (int64_t i = 0; i < config.layers; ++i) {
    for (const Role role : kRoles) {
      layers.insert(stored_as(tensors, linear_name(i, role) + ".weight",
                              config.width(spaces_of(role).input)));
    }
  }
  const std::string embedding = stored_as(tensors, "model.embed_tokens.weight", config.hidden);
  return fmt::format(
      "layers {}, embedding {}, lm_head {}", fmt::join(layers, " and "), embedding,
      config.tied_embeddings ? "the same" : stored_as(tensors, "lm_head.weight", config.hidden));
}

// Of a recipe whose sites do not all have the same.
std::string site_bits_text(const Recipe& recipe, const ModelConfig& config) {
  std::vector<std::string> rules;
  for (const BitsRule& rule : recipe.site_bits) rules.push_back(to_text(rule));
  const StorageCost cost = storage_cost(recipe, config);
  return fmt::format("{}; on average {:.2f} a weight, {:.2f} an activation, with scales",
                     fmt::join(rules, " "), cost.weight_bits, cost.activation_bits);
}

// Not all bits have a place of their own in a page.
std::string cache_text(const ModelConfig& config, const Precision& precision) {
  const CacheLayout layout = cache_layout(config, precision);
  const auto bits = [](const char* name, const CacheQuant& quant, int stored) {
    if (!quant.enabled()) return fmt::format("{} float32", name);
    return stored == quant.bits ? fmt::format("{} {} bits", name, quant.bits)
                                : fmt::format("{} {} bits in {}", name, quant.bits, stored);
  };
  std::string text =
      bits("K", precision.keys, layout.k_bits) + ", " + bits("V", precision.values, layout.v_bits);
  if (layout.head_dim != config.head_dim)
    text += fmt::format(", heads of {} in {}", config.head_dim, layout.head_dim);
  return text;
}

struct Inspection {
  const Checkpoint* checkpoint;
  ModelConfig config;
  Recipe recipe;  // of a model that quarot wrote
  double stored_bytes = 0;
  std::set<std::string> types;
};

Result<Inspection> inspect(const Checkpoint& checkpoint) {
  Inspection inspection;
  inspection.checkpoint = &checkpoint;
  QUAROT_ASSIGN_OR_RETURN(inspection.config,
                          parse_config(checkpoint.config(), checkpoint.path().string()));
  QUAROT_ASSIGN_OR_RETURN(inspection.recipe, recipe_of(checkpoint));
  for (const TensorInfo& info : checkpoint.tensors().tensors()) {
    inspection.stored_bytes += static_cast<double>(info.bytes);
    inspection.types.insert(info.type);
  }
  return inspection;
}

std::string recipe_text(const Recipe& recipe) {
  return fmt::format("{} ({})", recipe.name, bits_label(recipe));
}

nlohmann::json to_json(const Inspection& i) {
  const ModelConfig& c = i.config;
  nlohmann::json widths = nlohmann::json::array();
  for (const Width& w : widths_of(c)) {
    widths.push_back(
        {{"space", w.what}, {"size", w.size}, {"made", w.made}, {"hadamard", w.is_hadamard}});
  }
  nlohmann::json json = {{"model", i.checkpoint->path().string()},
                         {"format", i.checkpoint->format()},
                         {"family", c.family},
                         {"parameters", c.parameters()},
                         {"layers", c.layers},
                         {"hidden", c.hidden},
                         {"heads", c.heads},
                         {"kv_heads", c.kv_heads},
                         {"head_dim", c.head_dim},
                         {"ffn", c.ffn},
                         {"vocab", c.vocab},
                         {"context", c.max_positions},
                         {"tied_embeddings", c.tied_embeddings},
                         {"types", i.types},
                         {"widths", widths},
                         {"bytes",
                          {{"stored", i.stored_bytes},
                           {"fp16", model_bytes(c, 16)},
                           {"w4", model_bytes(c, 4)},
                           {"cache_a_token", cache_bytes(c, i.recipe.precision)},
                           {"cache_fp16_a_token", cache_bytes_fp16(c)},
                           {"cache_kv4_a_token", cache_bytes(c, kv4())}}}};
  if (i.checkpoint->manifest()) {
    const StorageCost cost = storage_cost(i.recipe, c);
    json["average_bits"] = {{"weight", cost.weight_bits},
                            {"activation", cost.activation_bits},
                            {"cache", cost.cache_bits}};
    json["site_bits"] = nlohmann::json(i.recipe)["site_bits"];
    json["recipe"] = recipe_text(i.recipe);
    json["stored"] = {{"weights", weights_text(i.checkpoint->tensors(), c)},
                      {"cache", cache_text(c, i.recipe.precision)}};
  }
  return json;
}

void print(const Inspection& i) {
  const ModelConfig& c = i.config;
  const auto line = [](std::string_view name, const std::string& value) {
    std::fputs(fmt::format("{:<12}{}\n", name, value).c_str(), stdout);
  };
  line("model", fmt::format("{} ({}: {})", i.checkpoint->path().string(), i.checkpoint->format(),
                            fmt::join(i.types, ", ")));
  line("family", fmt::format("{}, {:.4g} million parameters, embeddings {}", c.family,
                             static_cast<double>(c.parameters()) / 1e6,
                             c.tied_embeddings ? "tied" : "not tied"));
  if (i.checkpoint->manifest()) {
    line("recipe", recipe_text(i.recipe));
    if (!i.recipe.site_bits.empty()) line("bits", site_bits_text(i.recipe, c));
    line("weights", weights_text(i.checkpoint->tensors(), c));
    line("cache", cache_text(c, i.recipe.precision));
  }
  line("shape",
       fmt::format(
           "{} layers, hidden {}, FFN {}, {} heads of {} on {} KV heads, vocabulary {}, context {}",
           c.layers, c.hidden, c.ffn, c.heads, c.head_dim, c.kv_heads, c.vocab, c.max_positions));
  Table widths({"<space", "width", "<how its rotation is made"});
  for (const Width& w : widths_of(c)) widths.add({w.what, fmt::format("{}", w.size), w.made});
  std::fputs(("\n" + widths.text() + "\n").c_str(), stdout);
  Table bytes({"<bytes", "now", "at 16 bits", "at W4A4KV4"});
  bytes.add({"model", format_bytes(i.stored_bytes), format_bytes(model_bytes(c, 16)),
             format_bytes(model_bytes(c, 4))});
  const auto context = static_cast<double>(c.max_positions);
  bytes.add({fmt::format("cache, {} tokens", c.max_positions),
             format_bytes(context * cache_bytes(c, i.recipe.precision)),
             format_bytes(context * cache_bytes_fp16(c)),
             format_bytes(context * cache_bytes(c, kv4()))});
  std::fputs(bytes.text().c_str(), stdout);
}

int run(const ModelInput& model, const CommonOptions& common) {
  const Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint(model.path);
  if (!checkpoint.ok()) return report(checkpoint.error());
  const Result<Inspection> inspection = inspect(**checkpoint);
  if (!inspection.ok()) return report(inspection.error());
  if (common.json) {
    print_json(to_json(*inspection));
  } else {
    print(*inspection);
  }
  return kDone;
}

}  // namespace

void add_inspect(CLI::App& app, Command& selected) {
  CLI::App* command =
      app.add_subcommand("inspect", "Say what a model is and how it would be rotated");
  auto model = std::make_shared<ModelInput>();
  auto common = std::make_shared<CommonOptions>();
  model->add_to(*command);
  common->add_output_to(*command);
  add_command(*command, "  quarot inspect model.gguf\n  quarot inspect model/ --json", selected,
              [model, common] { return run(*model, *common); });
}

}  // namespace quarot::cli
