#include "text/tokenizer_json_parts.h"

#include <map>

#include "base/error.h"
#include "base/function_ref.h"
#include "formats/json.h"
#include "text/json_find.h"
#include "text/utf8.h"
#include "text/word_patterns.h"

namespace quarot {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 8;  // of sequences in sequences
constexpr size_t kMaxReplacement = 64;

Error unknown_type(const char* part, const json& node, const char* known) {
  return error(ErrorCode::kUnsupported, "the {} '{}' is not supported; known: {}", part,
               find_string(node, "type").value_or("(no type)"), known);
}

Error missing(const char* part, const char* key) {
  return error(ErrorCode::kCorrupt, "the {} lacks '{}', or it has the wrong type", part, key);
}

// Calls visit(node) for every component in order, sequences unfolded.
Status for_each_part(const json& node, const char* part, const char* list_key,
                     FunctionRef<Status(const json&)> visit, int depth = 0) {
  if (node.is_null()) return {};
  if (depth == kMaxDepth) {
    return error(ErrorCode::kUnsupported, "the {} nests sequences more than {} deep", part,
                 kMaxDepth);
  }
  if (find_string(node, "type") != "Sequence") return visit(node);
  const json* list = find_value(node, list_key);
  if (list == nullptr || !list->is_array()) return missing(part, list_key);
  for (const json& entry : *list) {
    QUAROT_RETURN_IF_ERROR(for_each_part(entry, part, list_key, visit, depth + 1));
  }
  return {};
}

// {"String": "…"} or {"Regex": "…"}.
Result<Regex> parse_pattern(const char* part, const json& node) {
  const json* pattern = find_value(node, "pattern");
  if (pattern == nullptr) return missing(part, "pattern");
  if (const auto text = find_string(*pattern, "String")) return Regex::literal(*text);
  if (const auto regex = find_string(*pattern, "Regex")) return Regex::compile(*regex);
  return missing(part, "pattern");
}

Status parse_normalizer_step(const json& node, Normalizer& out) {
  constexpr const char* kPart = "normalizer";
  const std::string type = find_string(node, "type").value_or("");
  if (type == "NFC") {
    out.add(Normalizer::UnicodeForm{true, false});
  } else if (type == "NFD") {
    out.add(Normalizer::UnicodeForm{false, false});
  } else if (type == "NFKC") {
    out.add(Normalizer::UnicodeForm{true, true});
  } else if (type == "NFKD") {
    out.add(Normalizer::UnicodeForm{false, true});
  } else if (type == "Lowercase") {
    out.add(Normalizer::Lowercase{});
  } else if (type == "Strip") {
    out.add(Normalizer::Strip{find_bool(node, "strip_left").value_or(true),
                              find_bool(node, "strip_right").value_or(true)});
  } else if (type == "Prepend") {
    const auto prefix = find_string(node, "prepend");
    if (!prefix) return missing(kPart, "prepend");
    out.add(Normalizer::Prepend{*prefix});
  } else if (type == "Replace") {
    QUAROT_ASSIGN_OR_RETURN(Regex pattern, parse_pattern(kPart, node));
    const auto content = find_string(node, "content");
    if (!content) return missing(kPart, "content");
    out.add(Normalizer::Replace{std::move(pattern), *content});
  } else {
    return unknown_type(kPart, node,
                        "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace");
  }
  return {};
}

Result<PreTokenizer::Behavior> parse_behavior(const json& node) {
  using Behavior = PreTokenizer::Behavior;
  static const std::map<std::string, Behavior, std::less<>> known = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  const auto found = known.find(find_string(node, "behavior").value_or(""));
  if (found == known.end()) {
    return error(ErrorCode::kUnsupported,
                 "the pre-tokenizer's behavior is not one of Removed, Isolated, "
                 "MergedWithPrevious, MergedWithNext, Contiguous");
  }
  return found->second;
}

Result<PreTokenizer::Split> parse_split(const json& node) {
  QUAROT_ASSIGN_OR_RETURN(Regex pattern, parse_pattern("pre-tokenizer", node));
  QUAROT_ASSIGN_OR_RETURN(const auto behavior, parse_behavior(node));
  return PreTokenizer::Split{std::move(pattern), behavior,
                             find_bool(node, "invert").value_or(false)};
}

Result<PreTokenizer::Split> isolated(std::string_view pattern) {
  QUAROT_ASSIGN_OR_RETURN(Regex regex, Regex::compile(pattern));
  return PreTokenizer::Split{std::move(regex)};
}

// Files before prepend_scheme say add_prefix_space.
Result<PreTokenizer::Metaspace::Prepend> parse_prepend_scheme(const json& node) {
  using Prepend = PreTokenizer::Metaspace::Prepend;
  const std::string scheme = find_string(node, "prepend_scheme").value_or("always");
  if (scheme == "never" || !find_bool(node, "add_prefix_space").value_or(true))
    return Prepend::kNever;
  if (scheme == "first") return Prepend::kFirst;
  if (scheme == "always") return Prepend::kAlways;
  return error(ErrorCode::kUnsupported,
               "the Metaspace's prepend_scheme is '{}', not one of always, first, never", scheme);
}

Result<std::string> metaspace_replacement(const json& node) {
  std::string replacement = find_string(node, "replacement").value_or("▁");
  if (replacement.empty() || first_code_point(replacement).length != replacement.size()) {
    return error(ErrorCode::kCorrupt, "the Metaspace's replacement '{}' is not one character",
                 replacement.substr(0, 100));
  }
  return replacement;
}

Status parse_byte_level(const json& node, ParsedPreTokenizer& out) {
  out.byte_level = true;
  if (find_bool(node, "add_prefix_space").value_or(true))
    out.steps.add(PreTokenizer::PrefixSpace{});
  if (!find_bool(node, "use_regex").value_or(true)) return {};
  QUAROT_ASSIGN_OR_RETURN(auto split, isolated(kGpt2Words));
  out.steps.add(std::move(split));
  return {};
}

Status parse_pre_tokenizer_step(const json& node, ParsedPreTokenizer& out) {
  if (out.byte_level)
    return error(ErrorCode::kUnsupported, "the pre-tokenizer goes on after ByteLevel");
  const std::string type = find_string(node, "type").value_or("");
  if (type == "ByteLevel") return parse_byte_level(node, out);
  if (type == "Split") {
    QUAROT_ASSIGN_OR_RETURN(auto split, parse_split(node));
    out.steps.add(std::move(split));
  } else if (type == "Digits") {
    const bool individual = find_bool(node, "individual_digits").value_or(false);
    QUAROT_ASSIGN_OR_RETURN(auto split, isolated(individual ? R"(\p{N})" : R"(\p{N}+)"));
    out.steps.add(std::move(split));
  } else if (type == "Punctuation") {
    QUAROT_ASSIGN_OR_RETURN(auto split, isolated(R"([\p{P}$+<=>^`|~])"));
    if (find_value(node, "behavior") != nullptr) {
      QUAROT_ASSIGN_OR_RETURN(split.behavior, parse_behavior(node));
    }
    out.steps.add(std::move(split));
  } else if (type == "Metaspace") {
    QUAROT_ASSIGN_OR_RETURN(const auto prepend, parse_prepend_scheme(node));
    QUAROT_ASSIGN_OR_RETURN(std::string replacement, metaspace_replacement(node));
    out.steps.add(PreTokenizer::Metaspace{std::move(replacement), prepend,
                                          find_bool(node, "split").value_or(true)});
  } else {
    return unknown_type("pre-tokenizer", node,
                        "Sequence, ByteLevel, Split, Digits, Punctuation, Metaspace");
  }
  return {};
}

Status parse_strip_decoder(const json& node, TokenDecoder& out) {
  const int64_t start = find_integer(node, "start").value_or(0);
  if (find_string(node, "content") != " " || start > 1 || start < 0 ||
      find_integer(node, "stop").value_or(0) != 0) {
    return error(ErrorCode::kUnsupported,
                 "the decoder Strip takes off something other than one space at the start");
  }
  if (start == 1) out.strip_start = TokenDecoder::StripStart::kOneSpace;
  return {};
}

Status parse_decoder_step(const json& node, bool& fused, TokenDecoder& out) {
  const std::string type = find_string(node, "type").value_or("");
  if (type == "ByteLevel") {
    out.byte_level = true;
  } else if (type == "Replace") {
    const json* pattern = find_value(node, "pattern");
    const auto from = pattern != nullptr ? find_string(*pattern, "String") : std::nullopt;
    const auto to = find_string(node, "content");
    if (!from || from->empty() || !to || to->size() > kMaxReplacement || fused ||
        out.byte_fallback) {
      return error(ErrorCode::kUnsupported,
                   "the decoder Replace needs a String pattern and a content of up to {} bytes, "
                   "before ByteFallback and Fuse",
                   kMaxReplacement);
    }
    out.replacements.emplace_back(*from, *to);
  } else if (type == "ByteFallback") {
    out.byte_fallback = true;
  } else if (type == "Fuse") {
    fused = true;
  } else if (type == "Strip") {
    if (!fused) return error(ErrorCode::kUnsupported, "the decoder Strip stands before Fuse");
    return parse_strip_decoder(node, out);
  } else if (type == "Metaspace") {
    QUAROT_ASSIGN_OR_RETURN(const auto prepend, parse_prepend_scheme(node));
    QUAROT_ASSIGN_OR_RETURN(const std::string replacement, metaspace_replacement(node));
    out.replacements.emplace_back(replacement, " ");
    if (prepend != PreTokenizer::Metaspace::Prepend::kNever)
      out.strip_start = TokenDecoder::StripStart::kFirstToken;
  } else {
    return unknown_type("decoder", node,
                        "Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace");
  }
  return {};
}

}  // namespace

Status parse_normalizer(const json& node, Normalizer& out) {
  return for_each_part(node, "normalizer", "normalizers",
                       [&](const json& step) { return parse_normalizer_step(step, out); });
}

Status parse_pre_tokenizer(const json& node, ParsedPreTokenizer& out) {
  return for_each_part(node, "pre-tokenizer", "pretokenizers",
                       [&](const json& step) { return parse_pre_tokenizer_step(step, out); });
}

Status parse_decoder(const json& node, TokenDecoder& out) {
  bool fused = false;
  return for_each_part(node, "decoder", "decoders",
                       [&](const json& step) { return parse_decoder_step(step, fused, out); });
}

}  // namespace quarot
