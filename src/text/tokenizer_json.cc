#include "text/tokenizer_json.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "formats/json.h"
#include "text/json_find.h"
#include "text/merge_list.h"
#include "text/tokenizer_json_parts.h"
#include "text/tokenizer_pipeline.h"
#include "text/unigram.h"

namespace quarot {
namespace {

using nlohmann::json;

Status corrupt(std::string what) { return Error(ErrorCode::kCorrupt, std::move(what)); }

Status read_vocabulary(const json& model, Vocabulary& out) {
  const json* vocab = find_value(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) return corrupt("model.vocab is not an object");
  for (const auto& [content, id] : vocab->items()) {
    const auto number = as_integer(id);
    if (!number) return corrupt("model.vocab: the id of '" + content + "' is not an integer");
    QUAROT_RETURN_IF_ERROR(out.add(*number, content));
  }
  return {};
}

// "left right" or ["left", "right"].
Result<std::vector<Bpe::Merge>> read_merges(const json& model, const Vocabulary& vocabulary) {
  const json* list = find_value(model, "merges");
  MergeList merges(vocabulary);
  if (list == nullptr || !list->is_array())
    return error(ErrorCode::kCorrupt, "model.merges is not a list");
  for (const json& entry : *list) {
    if (entry.is_string()) {
      QUAROT_RETURN_IF_ERROR(merges.add(entry.get_ref<const std::string&>()));
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
               entry[1].is_string()) {
      QUAROT_RETURN_IF_ERROR(merges.add(entry[0].get_ref<const std::string&>(),
                                        entry[1].get_ref<const std::string&>()));
    } else {
      return error(ErrorCode::kCorrupt, "model.merges: entry {} is not a pair of tokens",
                   merges.merges().size());
    }
  }
  return merges.merges();
}

Result<std::optional<Token>> read_unk(const json& model, const Vocabulary& vocabulary) {
  const auto content = find_string(model, "unk_token");
  if (!content) return std::optional<Token>();
  const auto id = vocabulary.id(*content);
  if (!id)
    return error(ErrorCode::kCorrupt, "model.unk_token '{}' is not in the vocabulary", *content);
  return id;
}

Result<std::unique_ptr<const TokenModel>> read_bpe(const json& model, bool byte_level,
                                                   Vocabulary& vocabulary) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!find_string(model, key).value_or("").empty())
      return error(ErrorCode::kUnsupported, "the BPE model has a {}", key);
  }
  QUAROT_RETURN_IF_ERROR(read_vocabulary(model, vocabulary));
  QUAROT_ASSIGN_OR_RETURN(const auto merges, read_merges(model, vocabulary));
  QUAROT_ASSIGN_OR_RETURN(const auto unk, read_unk(model, vocabulary));
  Bpe::Options options;
  options.byte_level = byte_level;
  options.whole_words = find_bool(model, "ignore_merges").value_or(false);
  options.unknown = UnknownCharacters(vocabulary, unk, find_bool(model, "fuse_unk").value_or(false),
                                      find_bool(model, "byte_fallback").value_or(false));
  return std::unique_ptr<const TokenModel>(std::make_unique<Bpe>(vocabulary, merges, options));
}

// [["content", score], …]: ids are positions.
Result<std::vector<Unigram::Piece>> read_pieces(const json& model, Vocabulary& vocabulary) {
  const json* vocab = find_value(model, "vocab");
  if (vocab == nullptr || !vocab->is_array())
    return error(ErrorCode::kCorrupt, "model.vocab is not a list");
  std::vector<Unigram::Piece> pieces;
  for (const json& entry : *vocab) {
    const auto id = static_cast<int64_t>(pieces.size());
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number() ||
        !std::isfinite(entry[1].get<double>()))
      return error(ErrorCode::kCorrupt, "model.vocab: entry {} is not a token and its score", id);
    const auto& content = entry[0].get_ref<const std::string&>();
    if (content.size() > Unigram::kMaxPiece) {
      return error(ErrorCode::kUnsupported, "model.vocab: entry {} is {} bytes long, more than {}",
                   id, content.size(), Unigram::kMaxPiece);
    }
    QUAROT_RETURN_IF_ERROR(vocabulary.add(id, content));
    pieces.push_back({static_cast<Token>(id), entry[1].get<double>()});
  }
  return pieces;
}

Result<std::unique_ptr<const TokenModel>> read_unigram(const json& model, Vocabulary& vocabulary) {
  QUAROT_ASSIGN_OR_RETURN(auto pieces, read_pieces(model, vocabulary));
  std::optional<Token> unk;
  if (find_value(model, "unk_id") != nullptr) {
    const int64_t id = find_integer(model, "unk_id").value_or(-1);
    if (id < 0 || id >= vocabulary.size())
      return error(ErrorCode::kCorrupt, "model.unk_id is not the id of a token");
    unk = static_cast<Token>(id);
  }
  UnknownCharacters unknown(vocabulary, unk, /*fuse=*/true,
                            find_bool(model, "byte_fallback").value_or(false));
  return std::unique_ptr<const TokenModel>(
      std::make_unique<Unigram>(vocabulary, std::move(pieces), unknown));
}

Status read_model(const json& file, bool byte_level, TokenizerParts& parts) {
  const json* model = find_value(file, "model");
  if (model == nullptr || !model->is_object()) return corrupt("no model");
  // The oldest files do not say; only BPE has merges.
  const std::string type =
      find_string(*model, "type").value_or(find_value(*model, "merges") != nullptr ? "BPE" : "");
  if (type == "BPE") {
    QUAROT_ASSIGN_OR_RETURN(parts.model, read_bpe(*model, byte_level, *parts.vocabulary));
  } else if (type == "Unigram" && !byte_level) {
    QUAROT_ASSIGN_OR_RETURN(parts.model, read_unigram(*model, *parts.vocabulary));
  } else {
    return error(ErrorCode::kUnsupported,
                 "the model '{}'{} is not supported; known: BPE, Unigram (not with ByteLevel)",
                 type, byte_level ? " with ByteLevel" : "");
  }
  return {};
}

Status read_added_tokens(const json& file, TokenizerParts& parts) {
  const json* list = find_value(file, "added_tokens");
  if (list == nullptr) return {};
  if (!list->is_array()) return corrupt("added_tokens is not a list");
  for (const json& entry : *list) {
    const int64_t id = find_integer(entry, "id").value_or(-1);
    const auto content = find_string(entry, "content");
    if (id < 0 || id >= Vocabulary::kMaxTokens || !content)
      return corrupt("added_tokens: an entry lacks its content or a valid id");
    AddedToken token;
    token.id = static_cast<Token>(id);
    token.content = *content;
    token.special = find_bool(entry, "special").value_or(false);
    token.lstrip = find_bool(entry, "lstrip").value_or(false);
    token.rstrip = find_bool(entry, "rstrip").value_or(false);
    token.single_word = find_bool(entry, "single_word").value_or(false);
    token.normalized = find_bool(entry, "normalized").value_or(!token.special);
    if (token.normalized) token.pattern = parts.normalizer.apply(*content);
    QUAROT_RETURN_IF_ERROR(add_token(parts, std::move(token)));
  }
  return {};
}

bool begins_with_special(const json& processor) {
  const json* single = find_value(processor, "single");
  return single != nullptr && single->is_array() && !single->empty() &&
         find_value(single->front(), "SpecialToken") != nullptr;
}

// Whether the template that frames a text, alone or one of a sequence, begins with a special token.
bool frames_with_bos(const json& post_processor) {
  const json* list = find_value(post_processor, "processors");
  if (list == nullptr || !list->is_array()) return begins_with_special(post_processor);
  return std::any_of(list->begin(), list->end(), begins_with_special);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view text,
                                                        TokenizerSettings settings) {
  QUAROT_ASSIGN_OR_RETURN(const json file, parse_json(text));
  TokenizerParts parts;
  parts.vocabulary = std::make_unique<Vocabulary>();
  const auto part = [&](const char* key) {
    const json* node = find_value(file, key);
    return node == nullptr ? json() : *node;
  };
  QUAROT_RETURN_IF_ERROR(parse_normalizer(part("normalizer"), parts.normalizer));
  ParsedPreTokenizer pre_tokenizer;
  QUAROT_RETURN_IF_ERROR(parse_pre_tokenizer(part("pre_tokenizer"), pre_tokenizer));
  parts.pre_tokenizer = std::move(pre_tokenizer.steps);
  QUAROT_RETURN_IF_ERROR(parse_decoder(part("decoder"), parts.decoder));
  QUAROT_RETURN_IF_ERROR(read_model(file, pre_tokenizer.byte_level, parts));
  QUAROT_RETURN_IF_ERROR(read_added_tokens(file, parts));
  parts.adds_bos_by_default = frames_with_bos(part("post_processor"));
  return make_tokenizer(std::move(parts), settings);
}

}  // namespace quarot
