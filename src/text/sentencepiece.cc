#include "text/sentencepiece.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/bpe.h"
#include "text/tokenizer_pipeline.h"
#include "text/unigram.h"

namespace quarot {
namespace {

using Kind = SentencePieceModel::Kind;
using Piece = SentencePieceModel::Piece;

constexpr std::string_view kSpaceMark = "▁";
static_assert(Unigram::kMaxPiece == AddedTokens::kMaxLength);

Status add_pieces(const SentencePieceModel& model, TokenizerParts& parts) {
  Token id = 0;
  for (const Piece& piece : model.pieces) {
    if (piece.content.size() > Unigram::kMaxPiece) {
      return error(ErrorCode::kUnsupported, "piece {} is {} bytes long, more than {}", id,
                   piece.content.size(), Unigram::kMaxPiece);
    }
    if (!std::isfinite(piece.score))
      return error(ErrorCode::kCorrupt, "the score of piece {} is not finite", id);
    QUAROT_RETURN_IF_ERROR(parts.vocabulary->add(id, piece.content));
    const bool special = piece.kind == Kind::kControl || piece.kind == Kind::kUnknown;
    if (special || piece.kind == Kind::kUserDefined) {
      AddedToken token;
      token.id = id;
      token.content = piece.content;
      token.special = special;
      token.normalized = !special;  // user-defined pieces may hold the space mark
      QUAROT_RETURN_IF_ERROR(add_token(parts, std::move(token)));
    }
    ++id;
  }
  return {};
}

// Ids of the pieces that text is made of. Unused ones are never produced; that SentencePiece would
// merge through one and take it apart again is not followed.
std::vector<Token> normal_pieces(const SentencePieceModel& model) {
  std::vector<Token> ids;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].kind == Kind::kNormal) ids.push_back(static_cast<Token>(id));
  }
  return ids;
}

// The best score has rank 0, equal scores equal ranks.
std::vector<RankedToken> ranks_of(const SentencePieceModel& model) {
  std::vector<Token> ids = normal_pieces(model);
  const auto score = [&](Token id) { return model.pieces[static_cast<size_t>(id)].score; };
  std::stable_sort(ids.begin(), ids.end(), [&](Token a, Token b) { return score(a) > score(b); });
  std::vector<RankedToken> ranked;
  uint32_t rank = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0 && score(ids[i]) != score(ids[i - 1])) ++rank;
    ranked.push_back({ids[i], rank});
  }
  return ranked;
}

std::unique_ptr<const TokenModel> make_model(const SentencePieceModel& model,
                                             const Vocabulary& vocabulary) {
  std::optional<Token> unk;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].kind == Kind::kUnknown) unk = static_cast<Token>(id);
  }
  UnknownCharacters unknown(vocabulary, unk, /*fuse=*/true, /*byte_fallback=*/true);
  if (model.algorithm == SentencePieceModel::Algorithm::kBpe) {
    Bpe::Options options;
    options.unknown = unknown;
    return std::make_unique<Bpe>(vocabulary, implied_merges(vocabulary, ranks_of(model)), options);
  }
  std::vector<Unigram::Piece> pieces;
  for (const Token id : normal_pieces(model))
    pieces.push_back({id, model.pieces[static_cast<size_t>(id)].score});
  return std::make_unique<Unigram>(vocabulary, std::move(pieces), unknown);
}

Normalizer make_normalizer(const SentencePieceModel& model) {
  const std::string mark(model.escape_whitespaces ? kSpaceMark : " ");
  Normalizer normalizer;
  if (model.remove_extra_whitespaces) normalizer.add(Normalizer::CollapseSpaces{});
  if (model.escape_whitespaces) normalizer.add(Normalizer::Replace{Regex::literal(" "), mark});
  if (model.add_dummy_prefix) normalizer.add(Normalizer::Prepend{mark});
  return normalizer;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_sentencepiece_tokenizer(const SentencePieceModel& model,
                                                                TokenizerSettings settings) {
  TokenizerParts parts;
  parts.vocabulary = std::make_unique<Vocabulary>();
  QUAROT_RETURN_IF_ERROR(add_pieces(model, parts));
  parts.normalizer = make_normalizer(model);
  parts.model = make_model(model, *parts.vocabulary);
  for (AddedToken& token : settings.added_tokens) {
    QUAROT_RETURN_IF_ERROR(add_token(parts, std::move(token)));
  }
  if (model.escape_whitespaces)
    parts.decoder.replacements.emplace_back(std::string(kSpaceMark), " ");
  parts.decoder.byte_fallback = true;
  if (model.add_dummy_prefix) parts.decoder.strip_start = TokenDecoder::StripStart::kOneSpace;
  parts.adds_bos_by_default = true;
  if (!settings.bos_content && !settings.bos_id) settings.bos_id = model.bos;
  if (!settings.eos_content && settings.end_ids.empty() && model.eos)
    settings.end_ids = {*model.eos};
  return make_tokenizer(std::move(parts), settings);
}

}  // namespace quarot
