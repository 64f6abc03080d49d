// Text to token ids and back, as the model was trained with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quarot/status.h"
#include "quarot/text.h"

namespace quarot {

class GgufFile;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of the text. Special tokens written out in the text ("<|im_end|>") are recognised unless
  // `parse_special` is false; none are added. Invalid UTF-8 is encoded byte by byte where the
  // vocabulary allows it, else as U+FFFD.
  virtual std::vector<Token> encode(std::string_view text, bool parse_special = true) const = 0;

  // Text of the ids, bytes that are no UTF-8 as U+FFFD; unknown ids give nothing. `skip_special`
  // leaves special tokens out.
  virtual std::string decode(std::span<const Token> tokens, bool skip_special = false) const = 0;

  // The raw bytes of one token as they join the stream (a part of a UTF-8 sequence perhaps).
  virtual std::string token_bytes(Token token) const = 0;

  virtual int64_t vocab_size() const = 0;
  virtual std::optional<Token> token_id(std::string_view content) const = 0;
  virtual bool is_special(Token token) const = 0;

  virtual std::optional<Token> bos() const = 0;
  virtual const std::vector<Token>& end_tokens() const = 0;  // any of them ends a generation
  virtual bool adds_bos() const = 0;  // whether encoding for the model begins with BOS

  // The chat template's Jinja source, if the files carry one.
  virtual const std::optional<std::string>& chat_template() const = 0;
};

// Opens what a model folder holds (tokenizer.json, tokenizer.model, *.tiktoken,
// vocab.json+merges.txt; tokenizer_config.json, generation_config.json and chat_template.jinja
// beside it), or one such file.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::filesystem::path& path);
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const GgufFile& gguf);

// Decodes a stream token by token without ever splitting a UTF-8 sequence.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The stream goes on where these end: a space that decode() drops at the start of a text is kept,
  // unless the last of them is special and a new text starts after it.
  void follow(std::span<const Token> tokens);

  std::string push(Token token);  // the text that became complete, perhaps none
  std::string finish();           // what is left, invalid bytes as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool at_start_ = true;
  std::string pending_;
};

}  // namespace quarot
