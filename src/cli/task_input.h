// --tasks: what the commands that measure zero-shot tasks share.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/open_runnable.h"
#include "eval/tasks.h"

namespace quarot::cli {

struct TaskInput {
  std::vector<std::string> paths;
  int64_t max_items = 0;

  void add_to(CLI::App& command);
  // kInvalidArgument for two files of one name, which results go by.
  Result<std::vector<Task>> open(const OpenModel& model) const;
};

// "72.3 % ± 1.0, 70.1 % by character" or "31.2 % ± 0.6, perplexity 25.1".
std::string describe(const TaskResult& result);

// {"NAME": {"acc": …}, …}
nlohmann::json tasks_json(const std::vector<Task>& tasks, const std::vector<TaskResult>& results);

}  // namespace quarot::cli
