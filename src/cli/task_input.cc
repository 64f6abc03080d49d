#include "cli/task_input.h"

#include <set>

#include "base/error.h"
#include "cli/common.h"
#include "cli/table.h"
#include "eval/result_json.h"

namespace quarot::cli {

void TaskInput::add_to(CLI::App& command) {
  command.add_option("--tasks", paths, "zero-shot tasks: files of JSON lines");
  command.add_option("--max-items", max_items, "only so many items of each task (0: all)")
      ->check(at_least(0));
}

Result<std::vector<Task>> TaskInput::open(const OpenModel& model) const {
  const Checkpoint& checkpoint = *model.checkpoint;
  QUAROT_ASSIGN_OR_RETURN(const ModelConfig config,
                          parse_config(checkpoint.config(), checkpoint.path().string()));
  std::vector<Task> tasks;
  std::set<std::string> names;
  for (const std::string& path : paths) {
    QUAROT_ASSIGN_OR_RETURN(Task task, open_task(path, max_items, *model.tokenizer, config));
    if (!names.insert(task.name).second) {
      return error(ErrorCode::kInvalidArgument, "{}: a second task of the name {}", path,
                   task.name);
    }
    tasks.push_back(std::move(task));
  }
  return tasks;
}

std::string describe(const TaskResult& result) {
  std::string text =
      fmt::format("{:.2f} % ± {}", 100 * result.acc, uncertainty(100 * result.standard_error, 2));
  if (result.acc_norm) text += fmt::format(", {:.2f} % by character", 100 * *result.acc_norm);
  if (result.ppl) text += fmt::format(", perplexity {:.2f}", *result.ppl);
  return text;
}

nlohmann::json tasks_json(const std::vector<Task>& tasks, const std::vector<TaskResult>& results) {
  nlohmann::json json = nlohmann::json::object();
  for (size_t i = 0; i < tasks.size(); ++i) json[tasks[i].name] = results[i];
  return json;
}

}  // namespace quarot::cli
