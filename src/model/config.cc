#include "model/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "model/family.h"
#include "model/json_fields.h"
#include "model/rope.h"

namespace quarot {

namespace {

// Far above any model; keeps products of two dimensions well inside int64_t.
constexpr int64_t kMaxDimension = int64_t{1} << 27;

Status check_dimension(const JsonFields& json, std::string_view name, int64_t value) {
  if (value >= 1 && value <= kMaxDimension) return {};
  return error(ErrorCode::kCorrupt, "{}: \"{}\" is {}, expected 1 to {}", json.where(), name, value,
               kMaxDimension);
}

// A width that is rotated. Where no Hadamard matrix is known, that takes the square of its odd
// factor: models have up to 231 or so.
Status check_width(const JsonFields& json, std::string_view name, int64_t value) {
  constexpr int64_t kMaxWidth = int64_t{1} << 20;
  constexpr int64_t kMaxOddFactor = 8191;
  const int64_t odd = value >> std::countr_zero(static_cast<uint64_t>(value));
  if (value <= kMaxWidth && odd <= kMaxOddFactor) return {};
  return error(ErrorCode::kUnsupported,
               "{}: \"{}\" is {}, whose odd factor is {}; expected at most {}, and {}",
               json.where(), name, value, odd, kMaxWidth, kMaxOddFactor);
}

Status read_dimensions(const JsonFields& json, ModelConfig& config) {
  struct Field {
    const char* name;
    int64_t ModelConfig::*member;
  };
  constexpr Field kFields[] = {
      {"hidden_size", &ModelConfig::hidden},        {"num_hidden_layers", &ModelConfig::layers},
      {"num_attention_heads", &ModelConfig::heads}, {"intermediate_size", &ModelConfig::ffn},
      {"vocab_size", &ModelConfig::vocab},
  };
  for (const Field& field : kFields) {
    QUAROT_ASSIGN_OR_RETURN(config.*field.member, json.required<int64_t>(field.name));
    QUAROT_RETURN_IF_ERROR(check_dimension(json, field.name, config.*field.member));
  }
  if (config.layers > 4096) {
    return error(ErrorCode::kCorrupt, "{}: {} layers, expected at most 4096", json.where(),
                 config.layers);
  }
  QUAROT_ASSIGN_OR_RETURN(config.kv_heads,
                          json.optional<int64_t>("num_key_value_heads", config.heads));
  QUAROT_ASSIGN_OR_RETURN(config.head_dim,
                          json.optional<int64_t>("head_dim", config.hidden / config.heads));
  QUAROT_ASSIGN_OR_RETURN(config.max_positions,
                          json.optional<int64_t>("max_position_embeddings", 2048));
  QUAROT_RETURN_IF_ERROR(check_dimension(json, "num_key_value_heads", config.kv_heads));
  QUAROT_RETURN_IF_ERROR(check_dimension(json, "head_dim", config.head_dim));
  QUAROT_RETURN_IF_ERROR(check_dimension(json, "max_position_embeddings", config.max_positions));
  for (const auto& [name, value] : {std::pair("hidden_size", config.hidden),
                                    {"num_attention_heads", config.heads},
                                    {"head_dim", config.head_dim},
                                    {"num_attention_heads x head_dim", config.width(Space::kQuery)},
                                    {"intermediate_size", config.ffn}}) {
    QUAROT_RETURN_IF_ERROR(check_width(json, name, value));
  }
  if (config.heads % config.kv_heads != 0) {
    return error(ErrorCode::kCorrupt, "{}: {} attention heads do not share {} KV heads evenly",
                 json.where(), config.heads, config.kv_heads);
  }
  if (config.head_dim % 2 != 0) {
    return error(ErrorCode::kUnsupported, "{}: head_dim is {}, expected an even number",
                 json.where(), config.head_dim);
  }
  return {};
}

Status check_activation(const JsonFields& json) {
  QUAROT_ASSIGN_OR_RETURN(const std::string act, json.optional<std::string>("hidden_act", "silu"));
  if (act == "silu" || act == "swish") return {};
  return error(ErrorCode::kUnsupported, "{}: activation \"{}\" is not supported; supported is silu",
               json.where(), act);
}

}  // namespace

int64_t ModelConfig::width(Space space) const {
  switch (space) {
    case Space::kResidual:
    case Space::kAttentionInput:
    case Space::kFfnInput:
    case Space::kFinal:
      return hidden;
    case Space::kQuery:
    case Space::kAttentionOutput:
      return heads * head_dim;
    case Space::kKey:
    case Space::kValue:
      return kv_heads * head_dim;
    case Space::kGate:
    case Space::kUp:
    case Space::kFfnHidden:
      return ffn;
    case Space::kVocabulary:
      return vocab;
  }
  return 0;
}

int64_t ModelConfig::parameters() const {
  int64_t layer = 2 * hidden;
  for (const Role role : kRoles)
    layer += width(spaces_of(role).input) * width(spaces_of(role).output);
  return layers * layer + (tied_embeddings ? 1 : 2) * vocab * hidden + hidden;
}

Result<ModelConfig> parse_config(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object()) return error(ErrorCode::kCorrupt, "{}: expected a JSON object", where);
  const JsonFields fields(json, where);
  ModelConfig config;
  QUAROT_ASSIGN_OR_RETURN(config.family, fields.required<std::string>("model_type"));
  const Family* family = find_family(config.family);
  if (family == nullptr) {
    std::vector<std::string_view> known;
    for (const Family* f : families()) known.push_back(f->model_type);
    return error(ErrorCode::kUnsupported,
                 "{}: architecture \"{}\" is not supported; supported are {}", where, config.family,
                 fmt::join(known, ", "));
  }
  QUAROT_RETURN_IF_ERROR(read_dimensions(fields, config));
  QUAROT_RETURN_IF_ERROR(check_activation(fields));
  QUAROT_ASSIGN_OR_RETURN(config.norm_eps, fields.optional<double>("rms_norm_eps", 1e-5));
  if (!(config.norm_eps >= 0)) {
    return error(ErrorCode::kCorrupt, "{}: \"rms_norm_eps\" is {}, expected 0 or more", where,
                 config.norm_eps);
  }
  QUAROT_ASSIGN_OR_RETURN(config.tied_embeddings,
                          fields.optional<bool>("tie_word_embeddings", false));
  config.sliding_windows.assign(static_cast<size_t>(config.layers), 0);
  QUAROT_ASSIGN_OR_RETURN(config.rope, parse_rope(fields, config));
  QUAROT_RETURN_IF_ERROR(family->configure(fields, config));
  for (const int64_t window : config.sliding_windows) {
    if (window < 0)
      return error(ErrorCode::kCorrupt, "{}: \"sliding_window\" is {}", where, window);
  }
  return config;
}

}  // namespace quarot
