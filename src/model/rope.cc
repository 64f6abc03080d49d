#include "model/rope.h"

#include <cmath>
#include <numbers>

namespace quarot {

namespace {

std::vector<double> plain_frequencies(double theta, int64_t rotary_dim) {
  std::vector<double> frequency(static_cast<size_t>(rotary_dim / 2));
  for (size_t i = 0; i < frequency.size(); ++i) {
    frequency[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
  }
  return frequency;
}

// Low frequencies are slowed by `factor`, high ones kept, those between interpolated.
Status scale_llama3(const JsonFields& json, RopeConfig& rope) {
  QUAROT_ASSIGN_OR_RETURN(const double factor, json.required<double>("factor"));
  QUAROT_ASSIGN_OR_RETURN(const double low, json.required<double>("low_freq_factor"));
  QUAROT_ASSIGN_OR_RETURN(const double high, json.required<double>("high_freq_factor"));
  QUAROT_ASSIGN_OR_RETURN(const double original,
                          json.required<double>("original_max_position_embeddings"));
  if (!(factor > 0) || !(high > low) || !(original > 0)) {
    return error(ErrorCode::kCorrupt,
                 "{}: llama3 needs factor > 0 and high_freq_factor > low_freq_factor",
                 json.where());
  }
  for (double& frequency : rope.inverse_frequency) {
    const double turns =
        original * frequency / (2 * std::numbers::pi);  // over the original context
    if (turns < low) {
      frequency /= factor;
    } else if (turns <= high) {
      const double smooth = (turns - low) / (high - low);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
  return {};
}

// YaRN (Peng et al. 2023): interpolates between frequencies divided by `factor` and kept ones, by
// the number of turns a frequency makes over the original context.
Status scale_yarn(const JsonFields& json, const ModelConfig& config, RopeConfig& rope) {
  QUAROT_ASSIGN_OR_RETURN(const double factor, json.required<double>("factor"));
  QUAROT_ASSIGN_OR_RETURN(const double fast, json.optional<double>("beta_fast", 32));
  QUAROT_ASSIGN_OR_RETURN(const double slow, json.optional<double>("beta_slow", 1));
  QUAROT_ASSIGN_OR_RETURN(const double original,
                          json.optional<double>("original_max_position_embeddings",
                                                static_cast<double>(config.max_positions)));
  QUAROT_ASSIGN_OR_RETURN(const std::optional<double> attention,
                          json.optional<double>("attention_factor"));
  if (!(factor > 0) || !(original > 0) || !(rope.theta > 1)) {
    return error(ErrorCode::kCorrupt, "{}: yarn needs a factor above 0 and rope_theta above 1",
                 json.where());
  }
  const auto dim = static_cast<double>(rope.rotary_dim);
  const auto dimension_of = [&](double turns) {
    return dim * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  const double first = std::max(std::floor(dimension_of(fast)), 0.0);
  const double last = std::max(std::min(std::ceil(dimension_of(slow)), dim - 1), first + 0.001);
  for (size_t i = 0; i < rope.inverse_frequency.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    rope.inverse_frequency[i] *= ramp / factor + (1 - ramp);
  }
  rope.attention_factor = attention.value_or(factor > 1 ? 0.1 * std::log(factor) + 1 : 1);
  return {};
}

Status divide(std::vector<double>& frequency, const std::vector<double>& factors,
              const JsonFields& json, std::string_view name) {
  if (factors.size() != frequency.size()) {
    return error(ErrorCode::kCorrupt, "{}: {} has {} entries, expected {}", json.where(), name,
                 factors.size(), frequency.size());
  }
  for (size_t i = 0; i < frequency.size(); ++i) {
    if (!(factors[i] > 0))
      return error(ErrorCode::kCorrupt, "{}: {} has an entry not above 0", json.where(), name);
    frequency[i] /= factors[i];
  }
  return {};
}

// LongRoPE (Ding et al. 2024), as Phi-3 uses it: one list of factors up to the original context,
// one beyond.
Status scale_longrope(const JsonFields& json, const JsonFields& outer, const ModelConfig& config,
                      RopeConfig& rope) {
  QUAROT_ASSIGN_OR_RETURN(const auto short_factor,
                          json.required<std::vector<double>>("short_factor"));
  QUAROT_ASSIGN_OR_RETURN(const auto long_factor,
                          json.required<std::vector<double>>("long_factor"));
  QUAROT_ASSIGN_OR_RETURN(std::optional<int64_t> original,
                          outer.optional<int64_t>("original_max_position_embeddings"));
  if (!original) {
    QUAROT_ASSIGN_OR_RETURN(original, json.optional<int64_t>("original_max_position_embeddings"));
  }
  rope.original_positions = original.value_or(config.max_positions);
  if (rope.original_positions < 2) {
    return error(ErrorCode::kCorrupt, "{}: original_max_position_embeddings is below 2",
                 json.where());
  }
  rope.long_inverse_frequency = rope.inverse_frequency;
  QUAROT_RETURN_IF_ERROR(divide(rope.inverse_frequency, short_factor, json, "short_factor"));
  QUAROT_RETURN_IF_ERROR(divide(rope.long_inverse_frequency, long_factor, json, "long_factor"));

  QUAROT_ASSIGN_OR_RETURN(const std::optional<double> given,
                          json.optional<double>("attention_factor"));
  const auto base = static_cast<double>(rope.original_positions);
  const double stretch = static_cast<double>(config.max_positions) / base;
  const double computed = stretch > 1 ? std::sqrt(1 + std::log(stretch) / std::log(base)) : 1;
  rope.attention_factor = given.value_or(computed);
  return {};
}

Status scale(std::string_view type, const JsonFields& json, const JsonFields& outer,
             const ModelConfig& config, RopeConfig& rope) {
  if (type == "default") return {};
  if (type == "llama3") return scale_llama3(json, rope);
  if (type == "yarn") return scale_yarn(json, config, rope);
  if (type == "longrope" || type == "su") return scale_longrope(json, outer, config, rope);
  if (type == "linear") {
    QUAROT_ASSIGN_OR_RETURN(const double factor, json.required<double>("factor"));
    return divide(rope.inverse_frequency,
                  std::vector<double>(rope.inverse_frequency.size(), factor), json, "factor");
  }
  return error(ErrorCode::kUnsupported,
               "{}: RoPE type \"{}\" is not supported; supported are default, linear, llama3, "
               "yarn, longrope",
               json.where(), type);
}

}  // namespace

Result<RopeConfig> parse_rope(const JsonFields& json, const ModelConfig& config) {
  const char* key = json.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  QUAROT_ASSIGN_OR_RETURN(const JsonFields inner, json.object(key));
  QUAROT_ASSIGN_OR_RETURN(const double outer_theta, json.optional<double>("rope_theta", 10000));
  QUAROT_ASSIGN_OR_RETURN(const double outer_partial,
                          json.optional<double>("partial_rotary_factor", 1));
  RopeConfig rope;
  QUAROT_ASSIGN_OR_RETURN(rope.theta, inner.optional<double>("rope_theta", outer_theta));
  QUAROT_ASSIGN_OR_RETURN(const double partial,
                          inner.optional<double>("partial_rotary_factor", outer_partial));
  QUAROT_ASSIGN_OR_RETURN(const std::string old_type,
                          inner.optional<std::string>("type", "default"));
  QUAROT_ASSIGN_OR_RETURN(const std::string type,
                          inner.optional<std::string>("rope_type", old_type));
  if (!(partial > 0 && partial <= 1) || !(rope.theta > 0) || !std::isfinite(rope.theta)) {
    return error(ErrorCode::kCorrupt,
                 "{}: expected rope_theta > 0 and 0 < partial_rotary_factor <= 1", json.where());
  }
  rope.rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * partial) / 2 * 2;
  rope.inverse_frequency = plain_frequencies(rope.theta, rope.rotary_dim);
  QUAROT_RETURN_IF_ERROR(scale(type, inner, json, config, rope));
  QUAROT_ASSIGN_OR_RETURN(const auto factors, inner.optional<std::vector<double>>("factors"));
  if (factors) QUAROT_RETURN_IF_ERROR(divide(rope.inverse_frequency, *factors, inner, "factors"));
  return rope;
}

}  // namespace quarot
