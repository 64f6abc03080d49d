#include "text/unigram.h"

#include <algorithm>
#include <limits>

#include "text/utf8.h"

namespace quarot {
namespace {

constexpr double kUnknownPenalty = 10.0;  // SentencePiece's and Hugging Face's
constexpr Token kUnknown = -1;
constexpr double kUnreached = -std::numeric_limits<double>::infinity();

// The best way to reach a position: the token that ends there, and where it begins.
struct Node {
  double score = kUnreached;
  size_t begin = 0;
  Token token = kUnknown;
};

PrefixIndex index_of(const Vocabulary& vocabulary, std::span<const Unigram::Piece> pieces) {
  std::vector<PrefixIndex::Entry> entries;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string_view content = vocabulary.content(pieces[i].token);
    if (!content.empty()) entries.push_back({std::string(content), static_cast<int32_t>(i)});
  }
  return PrefixIndex(std::move(entries));
}

}  // namespace

Unigram::Unigram(const Vocabulary& vocabulary, std::vector<Piece> pieces, UnknownCharacters unknown)
    : pieces_(std::move(pieces)),
      index_(index_of(vocabulary, pieces_)),
      unknown_(unknown),
      unknown_score_(0) {
  for (const Piece& piece : pieces_) unknown_score_ = std::min(unknown_score_, piece.score);
  unknown_score_ -= kUnknownPenalty;
}

void Unigram::encode(std::span<const std::string_view> words, std::vector<Token>& out) const {
  for (const std::string_view word : words) encode_word(word, out);
}

void Unigram::encode_word(std::string_view word, std::vector<Token>& out) const {
  std::vector<Node> best(word.size() + 1);
  best[0].score = 0;
  for (size_t at = 0; at < word.size();) {
    const size_t character = first_code_point(word.substr(at)).length;
    const auto offer = [&](size_t end, double score, Token token) {
      const double total = best[at].score + score;
      if (total > best[end].score) best[end] = {total, at, token};
    };
    bool has_single = false;
    index_.for_each_prefix(word.substr(at), [&](int32_t i, size_t length) {
      const Piece& piece = pieces_[static_cast<size_t>(i)];
      offer(at + length, piece.score, piece.token);
      has_single |= length == character;
    });
    if (!has_single) offer(at + character, unknown_score_, kUnknown);
    at += character;
  }
  std::vector<size_t> ends;
  for (size_t end = word.size(); end > 0; end = best[end].begin) ends.push_back(end);
  const size_t begin = out.size();
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const Node& node = best[*end];
    if (node.token == kUnknown) {
      unknown_.append(word.substr(node.begin, *end - node.begin), begin, out);
    } else {
      out.push_back(node.token);
    }
  }
}

}  // namespace quarot
