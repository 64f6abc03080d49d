// The components of tokenizer.json, one function each.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "quarot/status.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"

namespace quarot {

Status parse_normalizer(const nlohmann::json& node, Normalizer& out);

struct ParsedPreTokenizer {
  PreTokenizer steps;
  bool byte_level = false;  // the model's symbols are bytes
};
Status parse_pre_tokenizer(const nlohmann::json& node, ParsedPreTokenizer& out);

Status parse_decoder(const nlohmann::json& node, TokenDecoder& out);

}  // namespace quarot
