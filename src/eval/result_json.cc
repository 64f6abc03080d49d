#include "eval/result_json.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "model/json_fields.h"

namespace quarot {

namespace {

nlohmann::json or_null(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

// What is NaN because it is unknown.
nlohmann::json known(double value) {
  return std::isnan(value) ? nlohmann::json() : nlohmann::json(value);
}

Result<double> read_known(const JsonFields& fields, std::string_view key) {
  return fields.optional<double>(key, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

void to_json(nlohmann::json& json, const PerplexityResult& result) {
  json = {{"perplexity", result.perplexity},
          {"standard_error", known(result.standard_error)},
          {"nll", result.nll},
          {"tokens", result.tokens},
          {"windows", result.nll.size()}};
  if (result.against) {
    json["against"] = {{"kl", result.against->kl},
                       {"kl_standard_error", known(result.against->kl_standard_error)},
                       {"top1_agreement", result.against->top1_agreement}};
  }
}

void to_json(nlohmann::json& json, const TaskResult& result) {
  json = {{"acc", result.acc},
          {"acc_norm", or_null(result.acc_norm)},
          {"ppl", or_null(result.ppl)},
          {"items", result.correct.size()},
          {"standard_error", known(result.standard_error)},
          {"correct", result.correct}};
}

Result<PerplexityResult> parse_perplexity(const nlohmann::json& json, const std::string& where) {
  const JsonFields fields(json, where);
  PerplexityResult result;
  QUAROT_ASSIGN_OR_RETURN(result.perplexity, fields.required<double>("perplexity"));
  QUAROT_ASSIGN_OR_RETURN(result.standard_error, read_known(fields, "standard_error"));
  QUAROT_ASSIGN_OR_RETURN(result.nll, fields.required<std::vector<double>>("nll"));
  QUAROT_ASSIGN_OR_RETURN(result.tokens, fields.required<int64_t>("tokens"));
  if (!fields.has("against")) return result;
  QUAROT_ASSIGN_OR_RETURN(const JsonFields against, fields.object("against"));
  PerplexityResult::Divergence divergence;
  QUAROT_ASSIGN_OR_RETURN(divergence.kl, against.required<double>("kl"));
  QUAROT_ASSIGN_OR_RETURN(divergence.kl_standard_error, read_known(against, "kl_standard_error"));
  QUAROT_ASSIGN_OR_RETURN(divergence.top1_agreement, against.required<double>("top1_agreement"));
  result.against = divergence;
  return result;
}

Result<TaskResult> parse_task_result(const nlohmann::json& json, const std::string& where) {
  const JsonFields fields(json, where);
  TaskResult result;
  QUAROT_ASSIGN_OR_RETURN(result.acc, fields.required<double>("acc"));
  QUAROT_ASSIGN_OR_RETURN(result.acc_norm, fields.optional<double>("acc_norm"));
  QUAROT_ASSIGN_OR_RETURN(result.ppl, fields.optional<double>("ppl"));
  QUAROT_ASSIGN_OR_RETURN(result.standard_error, read_known(fields, "standard_error"));
  QUAROT_ASSIGN_OR_RETURN(result.correct, fields.required<std::vector<double>>("correct"));
  return result;
}

}  // namespace quarot
