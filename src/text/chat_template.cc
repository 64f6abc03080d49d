#include "text/chat_template.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_json.h"
#include "text/jinja_lexer.h"
#include "text/jinja_parser.h"

namespace quarot {

struct ChatTemplate::Program {
  std::string source;
  jinja::Block block;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  auto program = std::make_unique<Program>();
  program->source = jinja::normalize_newlines(source);
  Result<jinja::Block> block = jinja::parse(program->source);
  if (!block.ok()) return block.error().with_context("chat template");
  program->block = *std::move(block);
  return ChatTemplate(std::move(program));
}

Result<std::string> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                         bool add_generation_prompt,
                                         const nlohmann::ordered_json& variables) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  return render(list, add_generation_prompt, variables);
}

Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& messages,
                                         bool add_generation_prompt,
                                         const nlohmann::ordered_json& variables) const {
  if (!variables.is_object() && !variables.is_null()) {
    return error(ErrorCode::kInvalidArgument,
                 "chat template: the variables must be a JSON object, got {}",
                 variables.type_name());
  }
  jinja::Arena arena;
  auto* globals = arena.make<jinja::Scope>();
  // In this order: what is found first counts.
  for (const auto& [name, json] : variables.items()) {
    QUAROT_ASSIGN_OR_RETURN(const jinja::Value value, jinja::from_json(arena, json));
    globals->names.emplace_back(name, value);
  }
  QUAROT_ASSIGN_OR_RETURN(const jinja::Value list, jinja::from_json(arena, messages));
  globals->names.emplace_back("messages", list);
  globals->names.emplace_back("add_generation_prompt", add_generation_prompt);
  globals->names.emplace_back("tools", jinja::None{});
  globals->names.emplace_back("documents", jinja::None{});
  Result<std::string> text =
      jinja::Interpreter(program_->source, arena, globals).render(program_->block);
  if (!text.ok()) return text.error().with_context("chat template");
  return text;
}

Result<std::string> render_chat(const Tokenizer& tokenizer,
                                const std::vector<ChatMessage>& messages) {
  if (!tokenizer.chat_template()) {
    return error(ErrorCode::kUnsupported,
                 "this model carries no chat template: give it a prompt to continue instead");
  }
  QUAROT_ASSIGN_OR_RETURN(const ChatTemplate chat_template,
                          ChatTemplate::parse(*tokenizer.chat_template()));
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  if (tokenizer.bos()) variables["bos_token"] = tokenizer.token_bytes(*tokenizer.bos());
  if (!tokenizer.end_tokens().empty())
    variables["eos_token"] = tokenizer.token_bytes(tokenizer.end_tokens().front());
  return chat_template.render(messages, true, variables);
}

}  // namespace quarot
