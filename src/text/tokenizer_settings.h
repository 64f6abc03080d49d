// What stands beside a vocabulary: which tokens begin and end a text, and the chat template.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "quarot/status.h"
#include "text/added_tokens.h"

namespace quarot {

struct TokenizerSettings {
  std::optional<std::string> bos_content;
  std::optional<Token> bos_id;  // where no content is given
  std::optional<bool> add_bos;
  std::optional<std::string> eos_content;
  std::vector<Token> end_ids;
  std::vector<AddedToken> added_tokens;
  std::optional<std::string> chat_template;
};

// From what there is of tokenizer_config.json, special_tokens_map.json, generation_config.json,
// chat_template.jinja and chat_template.json. The first of these to say something counts, but a
// chat template in a file of its own comes before all.
Result<TokenizerSettings> read_tokenizer_settings(const std::filesystem::path& folder);

}  // namespace quarot
