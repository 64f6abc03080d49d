#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "text/byte_level.h"
#include "text/utf8.h"

namespace quarot {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr Token kUnknown = -1;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2⁶⁴ / φ: Knuth's multiplicative hash
constexpr size_t kNeighbourBits = size_t{1} << 22;

uint64_t pair_key(Token left, Token right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t neighbour_bit(char32_t left, char32_t right) {
  return ((static_cast<uint64_t>(left) << 21 | right) * kGolden) >> 42;
}
static_assert(kNeighbourBits == size_t{1} << (64 - 42));

}  // namespace

struct Bpe::Symbol {
  Token id;        // kUnknown: a character that the vocabulary lacks
  uint32_t begin;  // its first byte in the word
  uint32_t previous;
  uint32_t next;
};

// A pair that could merge; stale once either symbol has changed.
struct Bpe::Candidate {
  uint64_t order;  // rank, then position: the smallest merges first
  Token left;
  Token right;
  Token result;
  bool operator>(const Candidate& other) const { return order > other.order; }
};

struct Bpe::Workspace {
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  struct Range {
    size_t begin;
    size_t end;
  };
  std::unordered_map<std::string_view, Range> met;  // words and where in the output their ids are
};

Bpe::Bpe(const Vocabulary& vocabulary, std::span<const Merge> merges, Options options)
    : vocabulary_(&vocabulary), options_(options) {
  byte_symbols_.fill(kUnknown);
  for (size_t byte = 0; byte < (options_.byte_level ? 256 : 128); ++byte) {
    const std::string character(1, static_cast<char>(byte));
    if (const auto id = vocabulary.id(options_.byte_level ? byte_alphabet()[byte] : character))
      byte_symbols_[byte] = *id;
  }
  const size_t slots = std::bit_ceil(2 * merges.size() + 2);
  slots_.assign(slots, Slot{0, 0, kUnknown});
  slot_shift_ = 64U - static_cast<unsigned>(std::countr_zero(slots));
  if (!options_.byte_level) neighbours_.assign(kNeighbourBits / 64, 0);
  for (const Merge& merge : merges) {
    insert(merge);
    if (!options_.byte_level) note_neighbours(vocabulary.content(merge.result));
  }
}

void Bpe::insert(const Merge& merge) {
  const uint64_t pair = pair_key(merge.left, merge.right);
  size_t i = (pair * kGolden) >> slot_shift_;
  while (slots_[i].result != kUnknown && slots_[i].pair != pair) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {pair, merge.rank, merge.result};
}

const Bpe::Slot* Bpe::find(Token left, Token right) const {
  const uint64_t pair = pair_key(left, right);
  for (size_t i = (pair * kGolden) >> slot_shift_; slots_[i].result != kUnknown;
       i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].pair == pair) return &slots_[i];
  }
  return nullptr;
}

void Bpe::note_neighbours(std::string_view content) {
  while (!content.empty()) {
    const auto [left, length] = first_code_point(content);
    content.remove_prefix(length);
    if (content.empty()) return;
    const size_t bit = neighbour_bit(left, first_code_point(content).value);
    neighbours_[bit / 64] |= uint64_t{1} << bit % 64;
  }
}

bool Bpe::may_join(char32_t left, char32_t right) const {
  const size_t bit = neighbour_bit(left, right);
  return (neighbours_[bit / 64] >> bit % 64 & 1) != 0;
}

void Bpe::encode(std::span<const std::string_view> words, std::vector<Token>& out) const {
  Workspace work;
  for (const std::string_view word : words) {
    const size_t begin = out.size();
    if (options_.byte_level || options_.whole_words) {
      append_remembered(word, begin, work, out);
      continue;
    }
    // Where no merged token has two characters side by side, no merge crosses: cutting there gives
    // the same ids, from words short enough to meet again. A collision only costs a cut.
    size_t start = 0;
    char32_t last = 0;
    for (size_t at = 0; at < word.size();) {
      const auto [value, length] = first_code_point(word.substr(at));
      if (at > start && !may_join(last, value)) {
        append_remembered(word.substr(start, at - start), begin, work, out);
        start = at;
      }
      last = value;
      at += length;
    }
    append_remembered(word.substr(start), begin, work, out);
  }
}

void Bpe::append_remembered(std::string_view word, size_t begin, Workspace& work,
                            std::vector<Token>& out) const {
  const auto [entry, is_new] = work.met.try_emplace(word);
  auto& [from, to] = entry->second;
  if (is_new) {
    from = out.size();
    encode_word(word, from, work, out);
    to = out.size();
    const std::span<const Token> ids(out);
    // A run of unknown characters can reach over a cut.
    if (from < to && options_.unknown.continues_run(out[from], ids.subspan(begin, from - begin))) {
      out.erase(out.begin() + static_cast<ptrdiff_t>(from));
      work.met.erase(entry);
    }
    return;
  }
  size_t i = from;
  if (i < to && options_.unknown.continues_run(out[i], std::span(out).subspan(begin))) ++i;
  for (; i < to; ++i) out.push_back(out[i]);
}

void Bpe::encode_word(std::string_view word, size_t begin, Workspace& work,
                      std::vector<Token>& out) const {
  if (options_.whole_words) {
    const auto whole =
        options_.byte_level ? vocabulary_->id(to_byte_alphabet(word)) : vocabulary_->id(word);
    if (whole) return out.push_back(*whole);
  }
  load_symbols(word, work);
  merge_symbols(work);
  for (uint32_t i = work.symbols.empty() ? kNone : 0; i != kNone; i = work.symbols[i].next) {
    const Symbol& symbol = work.symbols[i];
    if (symbol.id != kUnknown) {
      out.push_back(symbol.id);
    } else {
      const size_t end = symbol.next == kNone ? word.size() : work.symbols[symbol.next].begin;
      options_.unknown.append(word.substr(symbol.begin, end - symbol.begin), begin, out);
    }
  }
}

void Bpe::load_symbols(std::string_view word, Workspace& work) const {
  work.symbols.clear();
  for (size_t at = 0; at < word.size();) {
    const std::string_view rest = word.substr(at);
    const auto byte = static_cast<unsigned char>(rest[0]);
    const int escaped = escaped_byte(rest);
    Token id = byte_symbols_[byte];
    size_t length = 1;
    if (options_.byte_level) {
      if (escaped >= 0) {
        id = byte_symbols_[static_cast<size_t>(escaped)];
        length = 3;
      }
    } else if (byte >= 0x80) {
      length = first_code_point(rest).length;
      id = vocabulary_->id(rest.substr(0, length)).value_or(kUnknown);
    }
    const auto index = static_cast<uint32_t>(work.symbols.size());
    work.symbols.push_back({id, static_cast<uint32_t>(at), index - 1, index + 1});
    at += length;
  }
  if (!work.symbols.empty()) work.symbols.back().next = kNone;
}

void Bpe::propose(uint32_t left, Workspace& work) const {
  const Symbol& symbol = work.symbols[left];
  if (symbol.next == kNone) return;
  const Token right = work.symbols[symbol.next].id;
  if (symbol.id == kUnknown || right == kUnknown) return;
  if (const Slot* slot = find(symbol.id, right)) {
    work.heap.push_back(
        {static_cast<uint64_t>(slot->rank) << 32 | left, symbol.id, right, slot->result});
  }
}

void Bpe::merge_symbols(Workspace& work) const {
  auto& symbols = work.symbols;
  auto& heap = work.heap;
  heap.clear();
  for (uint32_t i = 0; i < symbols.size(); ++i) propose(i, work);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto propose_to_heap = [&](uint32_t left) {
    const size_t before = heap.size();
    propose(left, work);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate best = heap.back();
    heap.pop_back();
    const auto left = static_cast<uint32_t>(best.order);
    const uint32_t right = symbols[left].next;
    if (symbols[left].id != best.left || right == kNone || symbols[right].id != best.right)
      continue;
    symbols[left].id = best.result;
    symbols[left].next = symbols[right].next;
    symbols[right].id = kUnknown;  // merged away: no candidate names it again
    if (symbols[left].next != kNone) symbols[symbols[left].next].previous = left;
    if (symbols[left].previous != kNone) propose_to_heap(symbols[left].previous);
    propose_to_heap(left);
  }
}

std::vector<Bpe::Merge> implied_merges(const Vocabulary& vocabulary,
                                       std::span<const RankedToken> ranked) {
  std::vector<uint32_t> ranks(static_cast<size_t>(vocabulary.size()), kNone);
  for (const RankedToken& entry : ranked) ranks[static_cast<size_t>(entry.token)] = entry.rank;
  // Single characters are there from the start; anything longer must have come about by a merge.
  const auto reachable = [&](std::string_view part) -> Token {
    const auto id = vocabulary.id(part);
    if (!id || ranks[static_cast<size_t>(*id)] == kNone) return kUnknown;
    return *id;
  };
  std::vector<Bpe::Merge> merges;
  for (const RankedToken& entry : ranked) {
    const std::string_view content = vocabulary.content(entry.token);
    for (size_t cut = content.empty() ? 0 : first_code_point(content).length; cut < content.size();
         cut += first_code_point(content.substr(cut)).length) {
      const Token left = reachable(content.substr(0, cut));
      if (left == kUnknown) continue;
      const Token right = reachable(content.substr(cut));
      if (right != kUnknown) merges.push_back({left, right, entry.token, entry.rank});
    }
  }
  return merges;
}

}  // namespace quarot
