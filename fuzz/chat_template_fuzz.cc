// Any bytes as a chat template: parsed, and rendered over one conversation with a tool call.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using Json = nlohmann::ordered_json;
  static const Json messages = {
      {{"role", "system"}, {"content", "Be brief."}},
      {{"role", "user"}, {"content", "Größe? \"it's\"\n"}},
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", {{"x", 1.5}}}}}}}}}};
  static const Json variables = {
      {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"date", "2024-07-26"}};
  const std::string_view source(reinterpret_cast<const char*>(bytes), size);
  const auto chat = quarot::ChatTemplate::parse(source);
  if (chat.ok()) static_cast<void>(chat->render(messages, true, variables));
  return 0;
}
