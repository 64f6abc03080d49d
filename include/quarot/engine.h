// The library's front door: open a model, turn text into tokens, run it, sample, stream.
// examples/generate.cc is a whole program.
//
// An Engine and its Sequences may be used from any number of threads, a Sequence from one at a
// time. A step of the model uses every core (or set_thread_count() of them), so steps of several
// threads take turns; sequences that should share a step, and with it one pass over the weights, go
// into one run(). What a sequence computes does not depend on what runs beside it, nor on how many
// threads compute it.
//
// The environment variable QUAROT_ISA names an instruction set to use in place of the fastest that
// the machine has: scalar, avx2, avxvnni, avx512vnni, amx; neondot, neoni8mm.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quarot/execution.h"
#include "quarot/generation.h"
#include "quarot/status.h"
#include "quarot/text.h"

namespace quarot {

struct EngineOptions {
  // What to make of a float model while opening it: the name of a recipe ("balanced", …) or the
  // path of a .json file. Empty: the model as it is. What quarot wrote carries its own recipe.
  std::string recipe;
  std::filesystem::path
      calibration;  // a text, for recipes that calibrate; else the model writes one
  Execution execution = Execution::kAutomatic;
  Device device = Device::kCpu;
  // Told how far opening has come; false stops it with kCancelled. May be empty.
  std::function<bool(std::string_view stage, double share)> on_progress;
};

struct ModelInfo {
  std::string family;  // "llama", "qwen3", …
  std::string recipe;
  std::string bits;  // "W4A4KV4"
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t vocab = 0;
  int64_t context = 0;  // the longest sequence, tokens
};

class Engine;

// One text in the making: its tokens, and their keys and values in the cache, which it gives back
// when it ends. It keeps its model alive.
class Sequence {
 public:
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();

  const std::vector<Token>& tokens() const;

  // Another sequence that begins as this one: texts with a common beginning compute it once, and a
  // packed model keeps it in memory once.
  Sequence fork() const;

 private:
  friend class Engine;
  struct State;
  explicit Sequence(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Tokens that follow in a sequence: a prompt, a part of one, or the token just sampled.
struct Step {
  Sequence* sequence;
  std::span<const Token> tokens;
};

class Engine {
 public:
  // A Hugging Face folder, a .safetensors or .gguf file, a llama2.c .bin, or what quarot wrote.
  // kNotFound: no such file or recipe; kCorrupt: damaged, the file or tensor named; kUnsupported: a
  // format, a family, a device or an instruction set that is not here; kInvalidArgument: a recipe
  // that does not fit the model, or a second one; kIo, kOutOfMemory, kCancelled as they say.
  static Result<Engine> open(const std::filesystem::path& model, const EngineOptions& options = {});

  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  const ModelInfo& model() const;

  // Begins with BOS where the model expects one.
  std::vector<Token> tokenize(std::string_view text) const;
  // Without special tokens. Of a part of a text it may begin or end within a character.
  std::string detokenize(std::span<const Token> tokens) const;
  // Whether the model means its text, or its turn in a chat, to end with this token.
  bool ends(Token token) const;
  // The prompt for the assistant's next message, tokenised. kUnsupported where the model carries no
  // chat template.
  Result<std::vector<Token>> tokenize_chat(const std::vector<ChatMessage>& messages) const;

  Sequence new_sequence();

  // Computes all steps in one batch and appends their tokens. Returns logits [steps, vocab],
  // row-major: what follows each step's last token. kInvalidArgument for an empty step, a sequence
  // that comes twice or belongs to another engine, a token outside the vocabulary, or more tokens
  // than the context holds: then nothing has changed. A model with damaged weights gives logits
  // that are no numbers.
  Result<std::vector<float>> run(std::span<const Step> steps);

  // Continues `prompt` and hands on text as it becomes certain, in whole UTF-8 sequences; false
  // from `on_text` ends the generation with kCancelled. kInvalidArgument as run(), and for options
  // out of their range; kCorrupt where the model's predictions are no numbers. The sequence ends up
  // holding prompt and answer; what it holds of the prompt already is not computed again, so that a
  // conversation goes on with the same sequence.
  Result<Generation> generate(Sequence& sequence, std::span<const Token> prompt,
                              const GenerationOptions& options,
                              const std::function<bool(std::string_view text)>& on_text = {});

  int64_t cache_bytes() const;  // of all sequences, and of pages waiting for the next

 private:
  struct State;
  explicit Engine(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace quarot
