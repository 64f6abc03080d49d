// Chat templates: the subset of Jinja2 that the templates of real models use, interpreted.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "quarot/status.h"

namespace quarot {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool"
  std::string content;
};

class ChatTemplate {
 public:
  // Parses; the error names line and column. Bounded depth and size: the source may be hostile.
  static Result<ChatTemplate> parse(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // The prompt for these messages. `variables` adds or overrides what the template sees beside
  // `messages` and `add_generation_prompt`: bos_token, eos_token, tools, date_string,
  // enable_thinking, … raise_exception() in the template becomes an error with its message. Bounded
  // in steps and output.
  Result<std::string> render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                             const nlohmann::json& variables) const;
  // The same with messages as JSON (tool calls, content parts).
  Result<std::string> render(const nlohmann::json& messages, bool add_generation_prompt,
                             const nlohmann::json& variables) const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

}  // namespace quarot
