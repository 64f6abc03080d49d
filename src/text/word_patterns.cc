#include "text/word_patterns.h"

#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "base/error.h"

namespace quarot {

// https://github.com/openai/gpt-2/blob/master/src/encoder.py
constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// cl100k_base: https://github.com/openai/tiktoken/blob/main/tiktoken_ext/openai_public.py
constexpr std::string_view kLlama3Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
// https://huggingface.co/Qwen/Qwen2-0.5B/blob/main/tokenizer.json
constexpr std::string_view kQwen2Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
// o200k_base, the same source as cl100k_base.
constexpr std::string_view kGpt4oWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// https://huggingface.co/mistralai/Mistral-Nemo-Base-2407/blob/main/tokenizer.json
constexpr std::string_view kTekkenWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array<std::string_view, 1> kGpt2 = {kGpt2Words};
constexpr std::array<std::string_view, 2> kDigitsThenGpt2 = {R"(\p{N})", kGpt2Words};
constexpr std::array<std::string_view, 1> kLlama3 = {kLlama3Words};
constexpr std::array<std::string_view, 1> kQwen2 = {kQwen2Words};
constexpr std::array<std::string_view, 1> kGpt4o = {kGpt4oWords};
constexpr std::array<std::string_view, 1> kTekken = {kTekkenWords};
// https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/tokenizer.json
constexpr std::array<std::string_view, 3> kDeepseek3 = {
    R"(\p{N}{1,3})", R"([一-龥぀-ゟ゠-ヿ]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
// https://huggingface.co/tiiuae/falcon-7b/blob/main/tokenizer.json
constexpr std::array<std::string_view, 3> kFalcon = {R"([\p{P}$+<=>^~|`]+)", kGpt2Words,
                                                     R"([0-9][0-9][0-9])"};

struct Named {
  std::string_view name;
  WordPatterns words;
};

// "default" is what files say whose converter did not know: GPT-2's is the likeliest.
const std::array kNamed = {
    Named{"default", {kGpt2}},
    Named{"gpt-2", {kGpt2}},
    Named{"gpt2", {kGpt2}},
    Named{"phi-2", {kGpt2}},
    Named{"mpt", {kGpt2}},
    Named{"olmo", {kGpt2}},
    // As transformers reads it. Isolating digits, as the model was trained, would differ only for
    // numerals that are no digits (½, Ⅷ): no token of the vocabulary joins two digits or a space
    // and a digit.
    Named{"smollm", {kGpt2}},
    Named{"starcoder", {kDigitsThenGpt2}},
    Named{"refact", {kDigitsThenGpt2}},
    Named{"command-r", {kDigitsThenGpt2}},
    Named{"codeshell", {kDigitsThenGpt2}},
    Named{"exaone", {kDigitsThenGpt2}},
    Named{"llama-bpe", {kLlama3, false, true, true}},
    Named{"llama3", {kLlama3, false, true, true}},
    Named{"llama-v3", {kLlama3, false, true, true}},
    Named{"falcon3", {kLlama3, false, true, true}},
    Named{"dbrx", {kLlama3}},
    Named{"smaug-bpe", {kLlama3}},
    Named{"glm4", {kLlama3}},
    Named{"chatglm-bpe", {kLlama3}},
    Named{"qwen2", {kQwen2, true}},
    Named{"deepseek-r1-qwen", {kQwen2, true}},
    Named{"stablelm2", {kQwen2}},
    Named{"hunyuan", {kQwen2}},
    Named{"megrez", {kQwen2}},
    Named{"tekken", {kTekken, false, true, true}},
    Named{"gpt-4o", {kGpt4o}},
    Named{"llama4", {kGpt4o, false, true, true}},
    Named{"deepseek-v3", {kDeepseek3}},
    Named{"falcon", {kFalcon}},
};

}  // namespace

Result<WordPatterns> word_patterns(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Named& named : kNamed) {
    if (named.name == name) return named.words;
    known.push_back(named.name);
  }
  return error(ErrorCode::kUnsupported, "the pre-tokenizer '{}' is not known; known: {}", name,
               fmt::join(known, ", "));
}

Result<PreTokenizer> make_pre_tokenizer(const WordPatterns& words) {
  PreTokenizer pre_tokenizer;
  for (const std::string_view pattern : words.patterns) {
    QUAROT_ASSIGN_OR_RETURN(Regex regex, Regex::compile(pattern));
    pre_tokenizer.add(PreTokenizer::Split{std::move(regex)});
  }
  return pre_tokenizer;
}

}  // namespace quarot
