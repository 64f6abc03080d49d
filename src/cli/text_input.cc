#include "cli/text_input.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/mapped_file.h"

namespace quarot::cli {

void TextInput::add_to(CLI::App& command) {
  command.add_option("--text", path, "the text to predict");
  command.add_option(
      "--window", window,
      fmt::format("tokens a window; without it {}, or the model's context where that "
                  "is less",
                  perplexity.window));
  command.add_option("--max-windows", perplexity.max_windows,
                     "stop after so many windows (0: all)");
  command.add_option("--stride", perplexity.stride, "overlap windows, advancing by so many tokens");
  command.add_option("--protocol", protocol, "paper or llama.cpp")->capture_default_str();
  command.add_flag("--bos-each-window", perplexity.bos_each_window, "begin every window with BOS");
}

void TextInput::require(CLI::App& command, const TaskInput& tasks) const {
  command.parse_complete_callback([this, &tasks] {
    if (path.empty() && tasks.paths.empty()) throw CLI::RequiredError("--text or --tasks");
  });
}

Status TextInput::apply() {
  if (protocol == "paper") {
    perplexity.protocol = perplexity.stride != 0 ? Protocol::kStrided : Protocol::kPaper;
  } else if (protocol == "llama.cpp") {
    perplexity.protocol = Protocol::kLlamaCpp;
  } else {
    return error(ErrorCode::kInvalidArgument, "--protocol {}: expected paper or llama.cpp",
                 protocol);
  }
  return {};
}

Result<std::vector<EvalWindow>> TextInput::windows(const OpenModel& model) {
  if (path.empty()) return std::vector<EvalWindow>();
  const Tokenizer& tokenizer = *model.tokenizer;
  const Checkpoint& checkpoint = *model.checkpoint;
  QUAROT_ASSIGN_OR_RETURN(const ModelConfig config,
                          parse_config(checkpoint.config(), checkpoint.path().string()));
  perplexity.window = window.value_or(std::min(perplexity.window, config.max_positions));
  if (perplexity.window > config.max_positions) {
    return error(ErrorCode::kInvalidArgument,
                 "windows of {} tokens, but the model's context is {}: choose --window {} or less",
                 perplexity.window, config.max_positions, config.max_positions);
  }
  QUAROT_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  std::vector<Token> tokens = tokenizer.encode(text);
  const std::optional<Token> bos = tokenizer.bos();
  const bool leads = tokenizer.adds_bos() && bos && !perplexity.bos_each_window;
  if (leads) tokens.insert(tokens.begin(), *bos);
  Result<std::vector<EvalWindow>> windows = cut_windows(tokens, perplexity, bos);
  if (!windows.ok()) return windows.error().with_context(path);
  return windows;
}

}  // namespace quarot::cli
