#include "text/pre_tokenizer.h"

#include <algorithm>

namespace quarot {
namespace {

using Pieces = PreTokenizer::Pieces;
using Behavior = PreTokenizer::Behavior;

struct Span {
  size_t begin;
  size_t end;
  bool is_match;
};

// Matches and what lies between them, covering the piece.
std::vector<Span> spans_of(const PreTokenizer::Split& split, std::string_view piece) {
  std::vector<Span> spans;
  size_t done = 0;
  const auto gap_until = [&](size_t begin) {
    if (begin > done) spans.push_back({done, begin, split.invert});
  };
  split.pattern.for_each_match(piece, [&](size_t begin, size_t end) {
    gap_until(begin);
    spans.push_back({begin, end, !split.invert});
    done = end;
  });
  gap_until(piece.size());
  return spans;
}

// Joins each match to its neighbour, unless that is a match too: the one before, or with
// `backwards`, seen from the end, the one after.
void merge_matches(std::vector<Span>& spans, bool backwards) {
  if (backwards) std::reverse(spans.begin(), spans.end());
  std::vector<Span> merged;
  bool after_match = false;
  for (const Span& span : spans) {
    if (span.is_match && !after_match && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, span.begin);
      merged.back().end = std::max(merged.back().end, span.end);
    } else {
      merged.push_back(span);
    }
    after_match = span.is_match;
  }
  if (backwards) std::reverse(merged.begin(), merged.end());
  spans = std::move(merged);
}

void join_equal_neighbours(std::vector<Span>& spans) {
  std::vector<Span> joined;
  for (const Span& span : spans) {
    if (!joined.empty() && joined.back().is_match == span.is_match) {
      joined.back().end = span.end;
    } else {
      joined.push_back(span);
    }
  }
  spans = std::move(joined);
}

void split_piece(const PreTokenizer::Split& split, std::string_view piece,
                 std::vector<std::string_view>& out) {
  std::vector<Span> spans = spans_of(split, piece);
  switch (split.behavior) {
    case Behavior::kRemoved:
      std::erase_if(spans, [](const Span& span) { return span.is_match; });
      break;
    case Behavior::kIsolated:
      break;
    case Behavior::kMergedWithPrevious:
      merge_matches(spans, false);
      break;
    case Behavior::kMergedWithNext:
      merge_matches(spans, true);
      break;
    case Behavior::kContiguous:
      join_equal_neighbours(spans);
      break;
  }
  for (const Span& span : spans) out.push_back(piece.substr(span.begin, span.end - span.begin));
}

void apply(const PreTokenizer::Split& split, bool /*is_start*/, Pieces& pieces) {
  std::vector<std::string_view> result;
  result.reserve(2 * pieces.views.size());
  for (const std::string_view piece : pieces.views) split_piece(split, piece, result);
  pieces.views = std::move(result);
}

void apply(const PreTokenizer::PrefixSpace&, bool /*is_start*/, Pieces& pieces) {
  for (std::string_view& piece : pieces.views) {
    if (!piece.starts_with(' ')) piece = pieces.owned.emplace_back(1, ' ').append(piece);
  }
}

void apply(const PreTokenizer::Metaspace& metaspace, bool is_start, Pieces& pieces) {
  using Prepend = PreTokenizer::Metaspace::Prepend;
  const auto& mark = metaspace.replacement;
  std::vector<std::string_view> result;
  bool is_first = is_start;
  for (const std::string_view piece : pieces.views) {
    std::string& text = pieces.owned.emplace_back();
    for (const char c : piece) {
      if (c == ' ') {
        text += mark;
      } else {
        text += c;
      }
    }
    const bool wants_mark =
        metaspace.prepend == Prepend::kAlways || (metaspace.prepend == Prepend::kFirst && is_first);
    if (wants_mark && !text.starts_with(mark)) text.insert(0, mark);
    is_first = false;
    if (metaspace.split) {
      split_piece({Regex::literal(mark), Behavior::kMergedWithNext, false}, text, result);
    } else {
      result.push_back(text);
    }
  }
  pieces.views = std::move(result);
}

}  // namespace

void PreTokenizer::add(Step step) { steps_.push_back(std::move(step)); }

Pieces PreTokenizer::split(std::string_view text, bool is_start) const {
  Pieces pieces;
  if (!text.empty()) pieces.views.push_back(text);
  for (const Step& step : steps_)
    std::visit([&](const auto& s) { apply(s, is_start, pieces); }, step);
  return pieces;
}

}  // namespace quarot
