// Chat templates: the subset of Jinja2 that the templates of real models use, interpreted with the
// settings of transformers' apply_chat_template (sandboxed, trim_blocks, lstrip_blocks, no
// autoescape). https://jinja.palletsprojects.com/en/stable/templates/
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "quarot/status.h"
#include "quarot/text.h"
#include "text/tokenizer.h"

namespace quarot {

class ChatTemplate {
 public:
  // Parses; the error names line and column. Bounded depth and size: the source may be hostile.
  static Result<ChatTemplate> parse(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // The prompt for these messages. `variables` adds to or overrides what the template sees beside
  // `messages`, `add_generation_prompt`, and `tools` and `documents`, which are none: bos_token,
  // eos_token, tools, date_string, enable_thinking, … A variable `date`, "YYYY-MM-DD", is the day
  // that strftime_now() tells instead of today. raise_exception() in the template becomes an error
  // with its message. Bounded in depth, work and output (16 MiB).
  // JSON keeps the order of its keys, because tojson prints them and models were trained on it.
  Result<std::string> render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                             const nlohmann::ordered_json& variables) const;
  // The same with messages as JSON (tool calls, content parts).
  Result<std::string> render(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                             const nlohmann::ordered_json& variables) const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

// The prompt for the assistant's next message, by the template the tokenizer carries; kUnsupported
// where it carries none.
Result<std::string> render_chat(const Tokenizer& tokenizer,
                                const std::vector<ChatMessage>& messages);

}  // namespace quarot
