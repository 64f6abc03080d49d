// quarot chat: a conversation in the terminal.
#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "cli/common.h"
#include "cli/generation_options.h"
#include "cli/model_input.h"
#include "text/chat_template.h"

namespace quarot::cli {

namespace {

struct ChatOptions {
  ModelInput model;
  CommonOptions common;
  RecipeOptions recipe;
  GenerationOptions generation;
  std::string system;
  std::vector<std::string> messages;
};

class Conversation {
 public:
  Conversation(const ChatOptions& options, const RunnableModel& runnable, Progress& progress)
      : options_(options),
        generation_(options.generation),
        runnable_(runnable),
        progress_(progress),
        session_(*runnable.backend, *runnable.tokenizer) {
    generation_.sampling.seed = options.recipe.seed().value_or(runnable.recipe.seed);
    if (!options.system.empty()) messages_.push_back({"system", options.system});
  }

  // One turn; an interrupted answer stays in the conversation as far as it came.
  Status say(const std::string& text) {
    messages_.push_back({"user", text});
    QUAROT_ASSIGN_OR_RETURN(const std::string prompt, render_chat(*runnable_.tokenizer, messages_));
    std::string answer;
    const auto on_text = [&](std::string_view piece) {
      answer += piece;
      if (options_.common.json) return;
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    };
    const Result<Generation> result =
        session_.generate(runnable_.tokenizer->encode(prompt), generation_, on_text, progress_);
    messages_.push_back({"assistant", answer});
    if (options_.common.json) {
      print_json({{"role", "assistant"}, {"content", answer}});
    } else {
      std::fputs("\n", stdout);
    }
    if (!result.ok() && !output_failed()) return result.error();
    return {};
  }

 private:
  const ChatOptions& options_;
  GenerationOptions generation_;
  const RunnableModel& runnable_;
  Progress& progress_;
  Session session_;
  std::vector<ChatMessage> messages_;
};

// Reads turns until the input ends. Ctrl-C ends an answer, not the conversation.
Status converse(Conversation& conversation) {
  const bool interactive = is_terminal(0);
  std::string line;
  while (true) {
    if (interactive) std::fputs(bold("> ").c_str(), stdout);
    std::fflush(stdout);
    if (output_failed() || !std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    if (Status status = conversation.say(line);
        !status.ok() && (status.error().code() != ErrorCode::kCancelled || !interactive)) {
      return status;
    }
    clear_interrupt();
  }
  if (interactive) std::fputs("\n", stdout);
  return {};
}

Status chat(const ChatOptions& options) {
  TerminalProgress progress(options.common.quiet);
  QUAROT_RETURN_IF_ERROR(options.common.apply(true));
  QUAROT_ASSIGN_OR_RETURN(
      const RunnableModel runnable,
      open_runnable(options.model, options.recipe, options.common.compute_device(), progress));
  progress.clear();
  if (!runnable.tokenizer->chat_template()) {
    return error(ErrorCode::kUnsupported,
                 "{}: this model carries no chat template; use quarot generate",
                 options.model.path);
  }
  Conversation conversation(options, runnable, progress);
  for (const std::string& message : options.messages) {
    if (!output_failed()) QUAROT_RETURN_IF_ERROR(conversation.say(message));
  }
  if (!options.messages.empty()) return {};
  return converse(conversation);
}

}  // namespace

void add_chat(CLI::App& app, Command& selected) {
  CLI::App* command = app.add_subcommand("chat", "Talk with a model");
  auto options = std::make_shared<ChatOptions>();
  options->model.add_to(*command);
  options->model.add_execution_to(*command);
  command->add_option("--system", options->system, "system message");
  command->add_option("--message,-m", options->messages,
                      "say this instead of reading from the terminal (may be given again)");
  add_generation_options(*command, options->generation);
  options->recipe.add_to(*command, "float");
  options->common.add_to(*command);
  add_command(*command,
              "  quarot chat model.gguf\n"
              "  quarot chat model/ --recipe balanced --a-bits 8 -m \"What is gravity?\"",
              selected, [options] {
                const Status status = chat(*options);
                return status.ok() ? kDone : report(status.error());
              });
}

}  // namespace quarot::cli
