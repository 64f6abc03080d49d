// The tokenizer in a GGUF file's metadata.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
#include "base/error.h"
#include "formats/gguf.h"
#include "text/byte_level_tokenizer.h"
#include "text/merge_list.h"
#include "text/sentencepiece.h"

namespace quarot {
namespace {

using Kind = SentencePieceModel::Kind;
using Strings = std::vector<std::string>;

// The metadata value without a copy, if it is there and has the type.
template <typename T>
const T* find(const GgufFile& file, std::string_view key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? nullptr : std::get_if<T>(&found->second);
}

Result<const Strings*> read_tokens(const GgufFile& file) {
  const auto* tokens = find<Strings>(file, "tokenizer.ggml.tokens");
  if (tokens == nullptr)
    return error(ErrorCode::kNotFound, "no tokenizer in the file: it lacks tokenizer.ggml.tokens");
  if (static_cast<int64_t>(tokens->size()) > Vocabulary::kMaxTokens) {
    return error(ErrorCode::kUnsupported, "{} tokens, more than {}", tokens->size(),
                 Vocabulary::kMaxTokens);
  }
  return tokens;
}

// What each token is; all normal where the file does not say.
Result<std::vector<Kind>> read_kinds(const GgufFile& file, size_t tokens) {
  std::vector<Kind> kinds(tokens, Kind::kNormal);
  const auto* types = find<std::vector<int64_t>>(file, "tokenizer.ggml.token_type");
  if (types == nullptr) return kinds;
  if (types->size() != tokens) {
    return error(ErrorCode::kCorrupt, "tokenizer.ggml.token_type has {} entries for {} tokens",
                 types->size(), tokens);
  }
  for (size_t id = 0; id < tokens; ++id) {
    const int64_t type = (*types)[id];
    if (type < 0 || type > 6)
      return error(ErrorCode::kCorrupt, "tokenizer.ggml.token_type of token {} is {}", id, type);
    if (type != 0) kinds[id] = static_cast<Kind>(type);
  }
  return kinds;
}

Status read_id(const GgufFile& file, std::string_view key, std::optional<Token>& out) {
  const auto* id = find<int64_t>(file, key);
  if (id == nullptr) return {};
  if (*id < 0 || *id >= Vocabulary::kMaxTokens)
    return error(ErrorCode::kCorrupt, "{} is {}, not a token", key, *id);
  out = static_cast<Token>(*id);
  return {};
}

Result<TokenizerSettings> read_settings(const GgufFile& file) {
  TokenizerSettings settings;
  QUAROT_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.bos_token_id", settings.bos_id));
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    std::optional<Token> id;
    QUAROT_RETURN_IF_ERROR(read_id(file, key, id));
    if (id) settings.end_ids.push_back(*id);
  }
  settings.add_bos = file.get<bool>("tokenizer.ggml.add_bos_token");
  settings.chat_template = file.get<std::string>("tokenizer.chat_template");
  return settings;
}

Result<std::unique_ptr<Tokenizer>> open_byte_level(const GgufFile& file) {
  TokenizerParts parts;
  parts.vocabulary = std::make_unique<Vocabulary>();
  QUAROT_ASSIGN_OR_RETURN(const Strings* tokens, read_tokens(file));
  QUAROT_ASSIGN_OR_RETURN(const auto kinds, read_kinds(file, tokens->size()));
  for (size_t id = 0; id < tokens->size(); ++id) {
    QUAROT_RETURN_IF_ERROR(parts.vocabulary->add(static_cast<int64_t>(id), (*tokens)[id]));
    const bool special = kinds[id] == Kind::kControl || kinds[id] == Kind::kUnknown;
    if (!special && kinds[id] != Kind::kUserDefined) continue;
    AddedToken token;
    token.id = static_cast<Token>(id);
    token.content = (*tokens)[id];
    token.special = special;
    QUAROT_RETURN_IF_ERROR(add_token(parts, std::move(token)));
  }
  const auto* lines = find<Strings>(file, "tokenizer.ggml.merges");
  if (lines == nullptr) return error(ErrorCode::kCorrupt, "the file lacks tokenizer.ggml.merges");
  MergeList merges(*parts.vocabulary);
  for (const std::string& line : *lines) QUAROT_RETURN_IF_ERROR(merges.add(line));
  QUAROT_ASSIGN_OR_RETURN(
      const WordPatterns words,
      word_patterns(file.get<std::string>("tokenizer.ggml.pre").value_or("default")));
  QUAROT_RETURN_IF_ERROR(complete_byte_level(parts, merges.merges(), words));
  QUAROT_ASSIGN_OR_RETURN(TokenizerSettings settings, read_settings(file));
  return make_tokenizer(std::move(parts), settings);
}

Result<std::unique_ptr<Tokenizer>> open_sentencepiece(const GgufFile& file) {
  QUAROT_ASSIGN_OR_RETURN(const Strings* tokens, read_tokens(file));
  QUAROT_ASSIGN_OR_RETURN(const auto kinds, read_kinds(file, tokens->size()));
  const auto* scores = find<std::vector<double>>(file, "tokenizer.ggml.scores");
  if (scores == nullptr || scores->size() != tokens->size()) {
    return error(ErrorCode::kCorrupt, "tokenizer.ggml.scores does not have {} numbers",
                 tokens->size());
  }
  SentencePieceModel model;
  model.algorithm = SentencePieceModel::Algorithm::kBpe;
  for (size_t id = 0; id < tokens->size(); ++id)
    model.pieces.push_back({(*tokens)[id], static_cast<float>((*scores)[id]), kinds[id]});
  model.add_dummy_prefix = file.get<bool>("tokenizer.ggml.add_space_prefix").value_or(true);
  model.remove_extra_whitespaces =
      file.get<bool>("tokenizer.ggml.remove_extra_whitespaces").value_or(false);
  QUAROT_ASSIGN_OR_RETURN(TokenizerSettings settings, read_settings(file));
  return make_sentencepiece_tokenizer(model, std::move(settings));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const GgufFile& gguf) {
  const auto open = [&]() -> Result<std::unique_ptr<Tokenizer>> {
    const std::string model = gguf.get<std::string>("tokenizer.ggml.model").value_or("");
    if (model == "gpt2") return open_byte_level(gguf);
    if (model == "llama") return open_sentencepiece(gguf);
    return error(
        ErrorCode::kUnsupported,
        "tokenizer.ggml.model is '{}'; known: gpt2 (byte-level BPE), llama (SentencePiece)", model);
  };
  auto tokenizer = open();
  if (!tokenizer.ok()) return tokenizer.error().with_context(gguf.path().string());
  return tokenizer;
}

}  // namespace quarot
