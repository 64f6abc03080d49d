// quarot inspect: what a file is, how each width's Hadamard is made, bytes now and after.
#include <fmt/ranges.h>
#include <cstdio>
#include <set>

#include "base/error.h"
#include "cli/common.h"
#include "cli/model_input.h"
#include "cli/table.h"

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

// Bytes of K and V a token, with a float scale and zero a head where quantised.
double cache_bytes(const ModelConfig& config, int bits) {
  const double heads = 2.0 * static_cast<double>(config.layers * config.kv_heads);
  return heads * (static_cast<double>(config.head_dim) * bits / 8 + (bits < kFloatBits ? 4 : 0));
}

struct Inspection {
  const Checkpoint* checkpoint;
  ModelConfig config;
  std::string recipe;
  double stored_bytes = 0;
  std::set<std::string> types;
};

Result<Inspection> inspect(const Checkpoint& checkpoint) {
  Inspection inspection;
  inspection.checkpoint = &checkpoint;
  QUAROT_ASSIGN_OR_RETURN(inspection.config,
                          parse_config(checkpoint.config(), checkpoint.path().string()));
  if (checkpoint.manifest()) {
    QUAROT_ASSIGN_OR_RETURN(const Recipe recipe, recipe_of(checkpoint));
    inspection.recipe = fmt::format("{} ({})", recipe.name, bits_label(recipe));
  }
  for (const TensorInfo& info : checkpoint.tensors().tensors()) {
    inspection.stored_bytes += static_cast<double>(info.bytes);
    inspection.types.insert(info.type);
  }
  return inspection;
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
                           {"cache_fp16_a_token", cache_bytes(c, 16)},
                           {"cache_kv4_a_token", cache_bytes(c, 4)}}}};
  if (!i.recipe.empty()) json["recipe"] = i.recipe;
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
  if (!i.recipe.empty()) line("recipe", i.recipe);
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
  bytes.add({fmt::format("cache, {} tokens", c.max_positions), "",
             format_bytes(context * cache_bytes(c, 16)),
             format_bytes(context * cache_bytes(c, 4))});
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
  common->add_to(*command);
  add_command(*command, "  quarot inspect model.gguf\n  quarot inspect model/ --json", selected,
              [model, common] { return run(*model, *common); });
}

}  // namespace quarot::cli
