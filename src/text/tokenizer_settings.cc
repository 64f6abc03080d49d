#include "text/tokenizer_settings.h"

#include <charconv>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/json.h"
#include "text/json_find.h"
#include "text/vocabulary.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The object in the file, or an empty one where there is no file.
Result<json> read_optional(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return json::object();
  QUAROT_ASSIGN_OR_RETURN(json value, read_json_file(path));
  if (!value.is_object()) {
    return error(ErrorCode::kCorrupt, "{}: expected an object, found {}", path.string(),
                 value.type_name());
  }
  return value;
}

// "<s>" or {"content": "<s>", …}.
std::optional<std::string> token_content(const json& object, const char* key) {
  const json* value = find_value(object, key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return find_string(object, key);
  return find_string(*value, "content");
}

Result<Token> checked_id(const std::optional<int64_t>& id, const char* what) {
  if (!id || *id < 0 || *id >= Vocabulary::kMaxTokens) {
    return error(ErrorCode::kCorrupt, "{} is not a token id (0…{})", what,
                 Vocabulary::kMaxTokens - 1);
  }
  return static_cast<Token>(*id);
}

// A string, or a list of named ones, of which "default" counts.
std::optional<std::string> chat_template_of(const json& object) {
  const json* value = find_value(object, "chat_template");
  if (value == nullptr || !value->is_array()) return find_string(object, "chat_template");
  for (const json& entry : *value) {
    if (find_string(entry, "name") == "default") return find_string(entry, "template");
  }
  return std::nullopt;
}

Status read_added_tokens(const json& config, std::vector<AddedToken>& out) {
  const json* tokens = find_value(config, "added_tokens_decoder");
  if (tokens == nullptr || !tokens->is_object()) return {};
  for (const auto& [key, value] : tokens->items()) {
    int64_t number = -1;
    const auto [end, status] = std::from_chars(key.data(), key.data() + key.size(), number);
    const bool is_number = status == std::errc() && end == key.data() + key.size();
    QUAROT_ASSIGN_OR_RETURN(const Token id,
                            checked_id(is_number ? std::optional(number) : std::nullopt,
                                       ("added_tokens_decoder: '" + key + "'").c_str()));
    AddedToken token;
    token.id = id;
    token.content = find_string(value, "content").value_or("");
    token.special = find_bool(value, "special").value_or(false);
    token.lstrip = find_bool(value, "lstrip").value_or(false);
    token.rstrip = find_bool(value, "rstrip").value_or(false);
    token.single_word = find_bool(value, "single_word").value_or(false);
    out.push_back(std::move(token));
  }
  return {};
}

Status read_tokenizer_config(const json& config, TokenizerSettings& settings) {
  settings.bos_content = token_content(config, "bos_token");
  settings.eos_content = token_content(config, "eos_token");
  settings.add_bos = find_bool(config, "add_bos_token");
  settings.chat_template = chat_template_of(config);
  return read_added_tokens(config, settings.added_tokens);
}

Status read_generation_config(const json& config, TokenizerSettings& settings) {
  if (const json* bos = find_value(config, "bos_token_id")) {
    QUAROT_ASSIGN_OR_RETURN(settings.bos_id, checked_id(as_integer(*bos), "bos_token_id"));
  }
  const json* eos = find_value(config, "eos_token_id");
  if (eos == nullptr) return {};
  const json ids = eos->is_array() ? *eos : json::array({*eos});
  for (const json& id : ids) {
    QUAROT_ASSIGN_OR_RETURN(const Token token, checked_id(as_integer(id), "eos_token_id"));
    settings.end_ids.push_back(token);
  }
  return {};
}

Status read_chat_template(const fs::path& folder, TokenizerSettings& settings) {
  std::error_code ignored;
  if (const fs::path path = folder / "chat_template.jinja"; fs::exists(path, ignored)) {
    QUAROT_ASSIGN_OR_RETURN(settings.chat_template, read_text_file(path));
    return {};
  }
  QUAROT_ASSIGN_OR_RETURN(const json file, read_optional(folder / "chat_template.json"));
  if (auto source = chat_template_of(file)) settings.chat_template = std::move(source);
  return {};
}

template <typename Read>
Status read_part(const fs::path& path, TokenizerSettings& settings, Read read) {
  QUAROT_ASSIGN_OR_RETURN(const json file, read_optional(path));
  const Status status = read(file, settings);
  if (!status.ok()) return status.error().with_context(path.string());
  return {};
}

}  // namespace

Result<TokenizerSettings> read_tokenizer_settings(const fs::path& folder) {
  TokenizerSettings settings;
  QUAROT_RETURN_IF_ERROR(
      read_part(folder / "tokenizer_config.json", settings, read_tokenizer_config));
  QUAROT_RETURN_IF_ERROR(
      read_part(folder / "generation_config.json", settings, read_generation_config));
  QUAROT_ASSIGN_OR_RETURN(const json map, read_optional(folder / "special_tokens_map.json"));
  if (!settings.bos_content) settings.bos_content = token_content(map, "bos_token");
  if (!settings.eos_content) settings.eos_content = token_content(map, "eos_token");
  QUAROT_RETURN_IF_ERROR(read_chat_template(folder, settings));
  return settings;
}

}  // namespace quarot
