#include "text/byte_level_tokenizer.h"

#include "base/error.h"
#include "formats/json.h"
#include "text/json_find.h"
#include "text/merge_list.h"

namespace quarot {
namespace {

Status read_vocabulary(std::string_view text, Vocabulary& vocabulary) {
  QUAROT_ASSIGN_OR_RETURN(const auto file, parse_json(text));
  if (!file.is_object()) {
    return error(ErrorCode::kCorrupt, "expected an object of tokens and ids, found {}",
                 file.type_name());
  }
  for (const auto& [content, id] : file.items()) {
    const auto number = as_integer(id);
    if (!number) return error(ErrorCode::kCorrupt, "the id of '{}' is not an integer", content);
    QUAROT_RETURN_IF_ERROR(vocabulary.add(*number, content));
  }
  return {};
}

// A line each; the first may say "#version: …".
Status read_merges(std::string_view text, MergeList& merges) {
  for (bool is_first = true; !text.empty(); is_first = false) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (is_first && line.starts_with("#version"))) continue;
    QUAROT_RETURN_IF_ERROR(merges.add(line));
  }
  return {};
}

}  // namespace

Status complete_byte_level(TokenizerParts& parts, std::span<const Bpe::Merge> merges,
                           const WordPatterns& words) {
  if (words.nfc) parts.normalizer.add(Normalizer::UnicodeForm{true, false});
  QUAROT_ASSIGN_OR_RETURN(parts.pre_tokenizer, make_pre_tokenizer(words));
  Bpe::Options options;
  options.byte_level = true;
  options.whole_words = words.whole_words;
  parts.model = std::make_unique<Bpe>(*parts.vocabulary, merges, options);
  parts.decoder.byte_level = true;
  parts.adds_bos_by_default = words.adds_bos;
  return {};
}

Result<std::unique_ptr<Tokenizer>> parse_vocab_and_merges(std::string_view vocab,
                                                          std::string_view merges,
                                                          TokenizerSettings settings) {
  TokenizerParts parts;
  parts.vocabulary = std::make_unique<Vocabulary>();
  const auto named = [](const char* file, const Status& status) {
    return status.ok() ? status : Status(status.error().with_context(file));
  };
  QUAROT_RETURN_IF_ERROR(named("vocab.json", read_vocabulary(vocab, *parts.vocabulary)));
  MergeList list(*parts.vocabulary);
  QUAROT_RETURN_IF_ERROR(named("merges.txt", read_merges(merges, list)));
  QUAROT_ASSIGN_OR_RETURN(const WordPatterns words, word_patterns("gpt-2"));
  QUAROT_RETURN_IF_ERROR(complete_byte_level(parts, list.merges(), words));
  for (AddedToken& token : settings.added_tokens) {
    QUAROT_RETURN_IF_ERROR(add_token(parts, std::move(token)));
  }
  // GPT-2's own token; its files do not say that it is special.
  constexpr std::string_view kEndOfText = "<|endoftext|>";
  if (const auto id = parts.vocabulary->id(kEndOfText)) {
    AddedToken token;
    token.id = *id;
    token.content = kEndOfText;
    token.special = true;
    QUAROT_RETURN_IF_ERROR(add_token(parts, std::move(token)));
    if (!settings.bos_content && !settings.bos_id) settings.bos_id = *id;
    if (!settings.eos_content && settings.end_ids.empty()) settings.end_ids = {*id};
  }
  return make_tokenizer(std::move(parts), settings);
}

}  // namespace quarot
