// Measured results as JSON: what the commands print and what the result store keeps.
#pragma once

#include <nlohmann/json.hpp>

#include "eval/perplexity.h"
#include "eval/tasks.h"

namespace quarot {

// {"perplexity", "standard_error", "nll", "tokens", "windows"}, and "against" where a reference
// was; standard errors that are unknown, as of one window, are null.
void to_json(nlohmann::json& json, const PerplexityResult& result);

// {"acc", "acc_norm", "ppl", "items", "standard_error", "correct"}; null is what this kind of task
// does not have, and the standard error of one item.
void to_json(nlohmann::json& json, const TaskResult& result);

// Read back, equal to what was written; kCorrupt, naming `where`, for anything else.
Result<PerplexityResult> parse_perplexity(const nlohmann::json& json, const std::string& where);
Result<TaskResult> parse_task_result(const nlohmann::json& json, const std::string& where);

}  // namespace quarot
