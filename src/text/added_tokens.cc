#include "text/added_tokens.h"

#include <utf8proc.h>

#include "text/utf8.h"

namespace quarot {
namespace {

PrefixIndex index_of(const std::vector<AddedToken>& tokens) {
  std::vector<PrefixIndex::Entry> entries;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].pattern.empty()) entries.push_back({tokens[i].pattern, static_cast<int32_t>(i)});
  }
  return PrefixIndex(std::move(entries));
}

CodePoint last_code_point(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  return first_code_point(text.substr(start));
}

bool is_word_character(char32_t value) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(value));
  return value == '_' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO);
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool word_before =
      begin > 0 && is_word_character(last_code_point(text.substr(0, begin)).value);
  const bool word_after =
      end < text.size() && is_word_character(first_code_point(text.substr(end)).value);
  return !word_before && !word_after;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), index_(index_of(tokens_)) {}

std::optional<AddedTokens::Match> AddedTokens::match_at(std::string_view text, size_t at,
                                                        size_t last_end, bool parse_special) const {
  std::optional<Match> match;
  index_.for_each_prefix(text.substr(at), [&](int32_t i, size_t length) {
    const AddedToken& token = tokens_[static_cast<size_t>(i)];
    if (!token.special || parse_special) match = Match{&token, at, at + length};
  });
  if (!match || (match->token->single_word && !stands_alone(text, match->begin, match->end)))
    return std::nullopt;
  while (match->token->lstrip && match->begin > last_end) {
    const auto [value, length] = last_code_point(text.substr(last_end, match->begin - last_end));
    if (!is_white_space(value)) break;
    match->begin -= length;
  }
  while (match->token->rstrip && match->end < text.size()) {
    const auto [value, length] = first_code_point(text.substr(match->end));
    if (!is_white_space(value)) break;
    match->end += length;
  }
  return match;
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text,
                                                     bool parse_special) const {
  std::vector<Segment> segments;
  size_t done = 0;  // everything before it is in `segments`
  for (size_t at = 0; at < text.size();) {
    if (!index_.may_start_with(static_cast<unsigned char>(text[at]))) {
      ++at;
      continue;
    }
    const auto match = match_at(text, at, done, parse_special);
    if (!match) {
      ++at;
      continue;
    }
    if (match->begin > done) segments.push_back({text.substr(done, match->begin - done), {}});
    segments.push_back({text.substr(match->begin, match->end - match->begin), match->token->id});
    at = done = match->end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), {}});
  return segments;
}

}  // namespace quarot
