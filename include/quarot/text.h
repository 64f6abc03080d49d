// The words that text is made of for a model.
#pragma once

#include <cstdint>
#include <string>

namespace quarot {

using Token = int32_t;  // an id of the model's vocabulary

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool"
  std::string content;
};

}  // namespace quarot
