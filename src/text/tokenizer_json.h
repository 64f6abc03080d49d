// tokenizer.json, Hugging Face's description of a whole tokenizer.
// https://github.com/huggingface/tokenizers
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "quarot/status.h"
#include "text/tokenizer.h"
#include "text/tokenizer_settings.h"

namespace quarot {

// Errors name the component: kCorrupt where it contradicts itself, kUnsupported (with what is
// known) where nothing here does what it asks for.
Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view text,
                                                        TokenizerSettings settings);

}  // namespace quarot
