// The tokenizer that every file format describes: added tokens, normaliser, pre-tokenizer, model
// and decoder, in that order. https://huggingface.co/docs/tokenizers/pipeline
#pragma once

#include <map>
#include <memory>

#include "quarot/status.h"
#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"
#include "text/token_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_settings.h"
#include "text/vocabulary.h"

namespace quarot {

struct TokenizerParts {
  std::unique_ptr<Vocabulary> vocabulary;
  std::map<Token, AddedToken> added_tokens;  // by id; add_token() adds
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const TokenModel> model;
  TokenDecoder decoder;
  bool adds_bos_by_default = false;  // where the settings do not say
};

// Puts the parts together. Errors: settings that name tokens which are not there.
Result<std::unique_ptr<Tokenizer>> make_tokenizer(TokenizerParts parts,
                                                  const TokenizerSettings& settings);

// Adds a token to the list, and to the vocabulary where it is not there yet; `pattern` defaults to
// the content. A token said twice counts once; two contents for one id are an error.
Status add_token(TokenizerParts& parts, AddedToken token);

}  // namespace quarot
