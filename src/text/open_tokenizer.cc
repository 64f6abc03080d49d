// Which of the tokenizer formats a file or folder holds.
#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/gguf.h"
#include "text/byte_level_tokenizer.h"
#include "text/sentencepiece.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using Opened = Result<std::unique_ptr<Tokenizer>>;

// What is wrong with a file's contents, with its name.
Opened named(const fs::path& path, Opened opened) {
  if (opened.ok()) return opened;
  return opened.error().with_context(path.string());
}

Opened open_sentencepiece(std::string_view bytes, TokenizerSettings settings) {
  QUAROT_ASSIGN_OR_RETURN(const auto model, parse_sentencepiece_model(bytes));
  return make_sentencepiece_tokenizer(model, std::move(settings));
}

Opened open_llama2c(std::string_view bytes, TokenizerSettings settings) {
  QUAROT_ASSIGN_OR_RETURN(const auto model, parse_llama2c_vocabulary(bytes));
  return make_sentencepiece_tokenizer(model, std::move(settings));
}

// vocab.json or merges.txt, whichever was named, and the other beside it.
Opened open_vocab_and_merges(const fs::path& path, TokenizerSettings settings) {
  QUAROT_ASSIGN_OR_RETURN(const std::string vocab,
                          read_text_file(path.parent_path() / "vocab.json"));
  QUAROT_ASSIGN_OR_RETURN(const std::string merges,
                          read_text_file(path.parent_path() / "merges.txt"));
  return named(path.parent_path(), parse_vocab_and_merges(vocab, merges, std::move(settings)));
}

bool is_model_name(std::string_view name) {
  return name.starts_with("tokenizer.model") || name.ends_with(".model");
}
bool is_rank_file_name(std::string_view name) { return name.ends_with(".tiktoken"); }
bool is_llama2c_name(std::string_view name) {
  return name.starts_with("tok") && name.ends_with(".bin");
}

Opened open_bytes(const fs::path& path, const std::string& bytes, TokenizerSettings settings) {
  const std::string name = path.filename().string();
  if (name.ends_with(".json")) return parse_tokenizer_json(bytes, std::move(settings));
  // Llama 3's tokenizer.model is a rank file too.
  if (is_rank_file_name(name) || (is_model_name(name) && looks_like_rank_file(bytes)))
    return parse_rank_file(bytes, path.stem().string(), std::move(settings));
  if (is_model_name(name)) return open_sentencepiece(bytes, std::move(settings));
  if (is_llama2c_name(name)) return open_llama2c(bytes, std::move(settings));
  return error(ErrorCode::kUnsupported,
               "not a tokenizer file by its name; known: *.json, vocab.json with merges.txt, "
               "tokenizer.model, *.model, *.tiktoken, tok*.bin, *.gguf");
}

Opened open_file(const fs::path& path, TokenizerSettings settings) {
  const std::string name = path.filename().string();
  if (name.ends_with(".gguf")) {
    QUAROT_ASSIGN_OR_RETURN(const auto gguf, open_gguf(path));
    return open_tokenizer(*gguf);
  }
  if (name == "vocab.json" || name == "merges.txt")
    return open_vocab_and_merges(path, std::move(settings));
  QUAROT_ASSIGN_OR_RETURN(const std::string bytes, read_text_file(path));
  return named(path, open_bytes(path, bytes, std::move(settings)));
}

// The file in the folder that says most, the first in order of name among equals.
Result<fs::path> find_file(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::path> files;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
    files.push_back(it->path());
  if (code) return error(ErrorCode::kIo, "{}: {}", folder.string(), code.message());
  std::sort(files.begin(), files.end());
  using Predicate = bool (*)(std::string_view);
  constexpr Predicate kPreferences[] = {
      [](std::string_view name) { return name == "tokenizer.json"; },
      [](std::string_view name) { return name.starts_with("tokenizer.model"); },
      is_rank_file_name,
      [](std::string_view name) { return name == "vocab.json"; },
      is_model_name,
      is_llama2c_name,
      [](std::string_view name) { return name == "tokenizer.gguf"; }};
  for (const Predicate& matches : kPreferences) {
    for (const fs::path& file : files) {
      if (matches(file.filename().string())) return file;
    }
  }
  return error(ErrorCode::kNotFound,
               "{}: no tokenizer in this folder; looked for tokenizer.json, tokenizer.model, "
               "*.tiktoken, vocab.json, *.model, tok*.bin, tokenizer.gguf",
               folder.string());
}

}  // namespace

Opened open_tokenizer(const fs::path& path) {
  fs::path file = path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    QUAROT_ASSIGN_OR_RETURN(file, find_file(path));
  }
  QUAROT_ASSIGN_OR_RETURN(TokenizerSettings settings, read_tokenizer_settings(file.parent_path()));
  return open_file(file, std::move(settings));
}

}  // namespace quarot
