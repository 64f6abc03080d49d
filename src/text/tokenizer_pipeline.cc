#include "text/tokenizer_pipeline.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/utf8.h"

namespace quarot {
namespace {

// Special tokens that end a turn in the chat formats in use, whatever else the files say.
constexpr std::array<std::string_view, 4> kTurnEnds = {"<|im_end|>", "<|eot_id|>", "<|end|>",
                                                       "<end_of_turn>"};

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(TokenizerParts parts, TokenizerSettings settings);

  std::vector<Token> encode(std::string_view text, bool parse_special) const override;
  std::string decode(std::span<const Token> tokens, bool skip_special) const override;
  std::string token_bytes(Token token) const override { return std::string(bytes_of(token)); }
  int64_t vocab_size() const override { return vocabulary_->size(); }
  std::optional<Token> token_id(std::string_view content) const override {
    return vocabulary_->id(content);
  }
  bool is_special(Token token) const override {
    return vocabulary_->contains(token) && special_[static_cast<size_t>(token)];
  }
  std::optional<Token> bos() const override { return bos_; }
  const std::vector<Token>& end_tokens() const override { return end_tokens_; }
  bool adds_bos() const override { return adds_bos_; }
  const std::optional<std::string>& chat_template() const override { return chat_template_; }

  Status resolve(const TokenizerSettings& settings, bool adds_bos_by_default);

 private:
  std::string_view bytes_of(Token token) const {
    return vocabulary_->contains(token) ? bytes_[static_cast<size_t>(token)] : std::string_view();
  }
  void encode_text(std::string_view text, bool is_start, bool parse_special,
                   std::vector<Token>& out) const;
  void add_end_token(Token token);

  std::unique_ptr<Vocabulary> vocabulary_;
  AddedTokens added_as_written_;
  AddedTokens added_normalized_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<const TokenModel> model_;
  TokenDecoder decoder_;
  std::vector<std::string> bytes_;  // of each token
  std::vector<bool> special_;
  std::optional<Token> bos_;
  std::vector<Token> end_tokens_;
  bool adds_bos_ = false;
  std::optional<std::string> chat_template_;
};

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts, TokenizerSettings settings)
    : vocabulary_(std::move(parts.vocabulary)),
      normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      model_(std::move(parts.model)),
      decoder_(std::move(parts.decoder)),
      special_(static_cast<size_t>(vocabulary_->size())),
      chat_template_(std::move(settings.chat_template)) {
  for (Token token = 0; token < vocabulary_->size(); ++token)
    bytes_.push_back(decoder_.bytes(vocabulary_->content(token)));
  std::vector<AddedToken> as_written;
  std::vector<AddedToken> normalized;
  for (auto& [id, token] : parts.added_tokens) {
    special_[static_cast<size_t>(id)] = token.special;
    (token.normalized ? normalized : as_written).push_back(std::move(token));
  }
  added_as_written_ = AddedTokens(std::move(as_written));
  added_normalized_ = AddedTokens(std::move(normalized));
}

std::vector<Token> PipelineTokenizer::encode(std::string_view text, bool parse_special) const {
  std::string escaped;
  if (!is_valid_utf8(text)) text = escaped = escape_invalid_utf8(text);
  std::vector<Token> ids;
  bool is_start = true;
  for (const auto& [segment, token] : added_as_written_.split(text, parse_special)) {
    if (token) {
      ids.push_back(*token);
    } else if (normalizer_.is_identity()) {
      encode_text(segment, is_start, parse_special, ids);
    } else {
      encode_text(normalizer_.apply(segment), is_start, parse_special, ids);
    }
    is_start = false;
  }
  return ids;
}

void PipelineTokenizer::encode_text(std::string_view text, bool is_start, bool parse_special,
                                    std::vector<Token>& out) const {
  for (const auto& [segment, token] : added_normalized_.split(text, parse_special)) {
    if (token) {
      out.push_back(*token);
    } else {
      const PreTokenizer::Pieces pieces = pre_tokenizer_.split(segment, is_start);
      model_->encode(pieces.views, out);
    }
    is_start = false;
  }
}

std::string PipelineTokenizer::decode(std::span<const Token> tokens, bool skip_special) const {
  std::string text;
  bool at_start = true;
  for (const Token token : tokens) {
    if (skip_special && is_special(token)) continue;
    std::string_view bytes = bytes_of(token);
    if (at_start && !bytes.empty()) {
      bytes.remove_prefix(decoder_.stripped(bytes));
      at_start = false;
    }
    text += bytes;
  }
  return lossy_utf8(text);
}

void PipelineTokenizer::add_end_token(Token token) {
  if (std::find(end_tokens_.begin(), end_tokens_.end(), token) == end_tokens_.end())
    end_tokens_.push_back(token);
}

Status PipelineTokenizer::resolve(const TokenizerSettings& settings, bool adds_bos_by_default) {
  const auto find = [&](const std::optional<std::string>& content) -> std::optional<Token> {
    return content ? vocabulary_->id(*content) : std::nullopt;
  };
  for (const auto& [content, name] : {std::pair(settings.bos_content, "bos_token"),
                                      std::pair(settings.eos_content, "eos_token")}) {
    if (content && !find(content)) {
      return error(ErrorCode::kCorrupt, "{} is '{}', which is not in the vocabulary", name,
                   *content);
    }
  }
  bos_ = find(settings.bos_content);
  if (!bos_) bos_ = settings.bos_id;
  if (bos_ && !vocabulary_->contains(*bos_))
    return error(ErrorCode::kCorrupt, "the BOS id {} is not in the vocabulary", *bos_);
  adds_bos_ = bos_.has_value() && settings.add_bos.value_or(adds_bos_by_default);
  if (const auto eos = find(settings.eos_content)) add_end_token(*eos);
  for (const Token token : settings.end_ids) {
    if (!vocabulary_->contains(token))
      return error(ErrorCode::kCorrupt, "the EOS id {} is not in the vocabulary", token);
    add_end_token(token);
  }
  for (const std::string_view content : kTurnEnds) {
    if (const auto token = vocabulary_->id(content); token && is_special(*token))
      add_end_token(*token);
  }
  return {};
}

}  // namespace

Status add_token(TokenizerParts& parts, AddedToken token) {
  if (token.content.empty()) return {};
  if (token.content.size() > AddedTokens::kMaxLength) {
    return error(ErrorCode::kUnsupported,
                 "the added token with id {} is {} bytes long, more than {}", token.id,
                 token.content.size(), AddedTokens::kMaxLength);
  }
  QUAROT_RETURN_IF_ERROR(parts.vocabulary->add_or_rename(token.id, token.content));
  if (token.pattern.empty()) token.pattern = token.content;
  const auto [entry, is_new] = parts.added_tokens.try_emplace(token.id, token);
  if (!is_new && entry->second.content != token.content) {
    return error(ErrorCode::kCorrupt, "the added tokens '{}' and '{}' have the same id {}",
                 entry->second.content, token.content, token.id);
  }
  return {};
}

Result<std::unique_ptr<Tokenizer>> make_tokenizer(TokenizerParts parts,
                                                  const TokenizerSettings& settings) {
  const bool adds_bos_by_default = parts.adds_bos_by_default;
  auto tokenizer = std::make_unique<PipelineTokenizer>(std::move(parts), settings);
  QUAROT_RETURN_IF_ERROR(tokenizer->resolve(settings, adds_bos_by_default));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace quarot
