#include <array>
#include <charconv>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/byte_level_tokenizer.h"
#include "text/utf8.h"

namespace quarot {
namespace {

constexpr size_t kMaxTokenBytes = 1024;  // implied merges cost the square of it

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

// RFC 4648, section 4, padded.
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const int digit = i < text.size() - padding ? base64_digit(text[i]) : 0;
    if (digit < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const unsigned shift : {16U, 8U, 0U}) bytes += static_cast<char>(bits >> shift & 0xFF);
    bits = 0;
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

struct Ranked {
  std::string bytes;
  int64_t rank;
};

std::optional<Ranked> parse_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  auto bytes = decode_base64(line.substr(0, space));
  const std::string_view digits = line.substr(space + 1);
  int64_t rank = -1;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (!bytes || status != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return Ranked{*std::move(bytes), rank};
}

std::string_view next_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

Result<std::vector<RankedToken>> read_ranks(std::string_view text, Vocabulary& vocabulary) {
  std::vector<RankedToken> ranks;
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = next_line(text);
    if (line.empty()) continue;
    const auto entry = parse_line(line);
    if (!entry) {
      return error(ErrorCode::kCorrupt, "line {} is not a token in base64, a space and its rank",
                   number);
    }
    if (entry->bytes.size() > kMaxTokenBytes) {
      return error(ErrorCode::kUnsupported, "line {}: a token of {} bytes, more than {}", number,
                   entry->bytes.size(), kMaxTokenBytes);
    }
    const Status added = vocabulary.add(entry->rank, to_byte_alphabet(entry->bytes));
    if (!added.ok()) return added.error().with_context(fmt::format("line {}", number));
    ranks.push_back({static_cast<Token>(entry->rank), static_cast<uint32_t>(entry->rank)});
  }
  if (ranks.empty()) return error(ErrorCode::kCorrupt, "no ranks");
  return ranks;
}

using Specials = std::vector<std::string>;  // "" leaves an id out

void add_numbered(Specials& specials, std::string_view prefix, int from, int to) {
  for (int i = from; i <= to; ++i) specials.push_back(fmt::format("{}{}|>", prefix, i));
}

// https://huggingface.co/Qwen/Qwen-7B/blob/main/tokenization_qwen.py
Specials qwen_specials() {
  Specials specials = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  add_numbered(specials, "<|extra_", 0, 204);
  return specials;
}

// https://github.com/meta-llama/llama3/blob/main/llama/tokenizer.py
Specials llama3_specials() {
  Specials specials = {"<|begin_of_text|>", "<|end_of_text|>"};
  add_numbered(specials, "<|reserved_special_token_", 0, 3);
  specials.insert(specials.end(), {"<|start_header_id|>", "<|end_header_id|>"});
  add_numbered(specials, "<|reserved_special_token_", 4, 4);
  specials.emplace_back("<|eot_id|>");
  add_numbered(specials, "<|reserved_special_token_", 5, 250);
  return specials;
}

// https://github.com/openai/tiktoken/blob/main/tiktoken_ext/openai_public.py
Specials gpt2_specials() { return {"<|endoftext|>"}; }
Specials cl100k_specials() {
  return {"<|endoftext|>",
          "<|fim_prefix|>",
          "<|fim_middle|>",
          "<|fim_suffix|>",
          "",
          "",
          "",
          "",
          "",
          "",
          "",
          "",
          "",
          "",
          "",
          "",
          "",
          "",
          "",
          "<|endofprompt|>"};
}
Specials o200k_specials() { return {"", "<|endoftext|>"}; }

struct Known {
  std::string_view name;  // of the file
  size_t ranks;
  std::string_view words;  // see word_patterns()
  Specials (*specials)();  // with the ids after the last rank
  std::string_view bos;
  std::string_view eos;
};

constexpr std::array kKnown = {
    Known{"qwen", 151643, "qwen2", qwen_specials, "", "<|endoftext|>"},
    Known{"llama3", 128000, "llama3", llama3_specials, "<|begin_of_text|>", "<|end_of_text|>"},
    Known{"cl100k_base", 100256, "glm4", cl100k_specials, "", "<|endoftext|>"},
    Known{"o200k_base", 199998, "gpt-4o", o200k_specials, "", "<|endoftext|>"},
    Known{"r50k_base", 50256, "gpt-2", gpt2_specials, "", "<|endoftext|>"},
};

Result<Known> identify(std::string_view name, size_t ranks) {
  for (const Known& known : kKnown) {
    if (name == known.name) return known;
  }
  for (const Known& known : kKnown) {
    if (ranks == known.ranks) return known;
  }
  std::string list;
  for (const Known& known : kKnown) list += fmt::format(" {} ({})", known.name, known.ranks);
  return error(ErrorCode::kUnsupported,
               "a rank file named '{}' with {} ranks; how it cuts words is known for:{}", name,
               ranks, list);
}

Status add_specials(const Known& known, TokenizerParts& parts) {
  auto id = static_cast<Token>(parts.vocabulary->size());
  for (const std::string& content : known.specials()) {
    AddedToken token;
    token.id = id++;
    token.content = content;
    token.special = true;
    QUAROT_RETURN_IF_ERROR(add_token(parts, std::move(token)));
  }
  return {};
}

}  // namespace

bool looks_like_rank_file(std::string_view text) { return parse_line(next_line(text)).has_value(); }

Result<std::unique_ptr<Tokenizer>> parse_rank_file(std::string_view text, std::string_view name,
                                                   TokenizerSettings settings) {
  TokenizerParts parts;
  parts.vocabulary = std::make_unique<Vocabulary>();
  QUAROT_ASSIGN_OR_RETURN(const auto ranks, read_ranks(text, *parts.vocabulary));
  QUAROT_ASSIGN_OR_RETURN(const Known known, identify(name, ranks.size()));
  QUAROT_ASSIGN_OR_RETURN(WordPatterns words, word_patterns(known.words));
  words.nfc = false;  // tiktoken takes the text as it is
  words.whole_words = true;
  const auto merges = implied_merges(*parts.vocabulary, ranks);
  QUAROT_RETURN_IF_ERROR(add_specials(known, parts));
  QUAROT_RETURN_IF_ERROR(complete_byte_level(parts, merges, words));
  if (!settings.bos_content && !settings.bos_id && !known.bos.empty())
    settings.bos_content = std::string(known.bos);
  if (!settings.eos_content && settings.end_ids.empty())
    settings.eos_content = std::string(known.eos);
  return make_tokenizer(std::move(parts), settings);
}

}  // namespace quarot
