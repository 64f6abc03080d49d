// Text from a prompt: prefill in chunks, then one token at a time, streamed.
#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/progress.h"
#include "runtime/backend.h"
#include "runtime/sampler.h"

namespace quarot {

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 256;
  int64_t prefill_chunk = 512;
  std::vector<std::string> stop;  // generation ends before any of these; they are not streamed
  bool ignore_end = false;        // go on past end-of-sequence tokens
};

enum class StopReason { kEndToken, kStopString, kMaxTokens, kContextFull };

struct Generation {
  std::vector<Token> tokens;
  std::string text;
  StopReason reason = StopReason::kMaxTokens;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

// One conversation with a model: the cache holds what was said, so that a further turn only adds to
// it.
class Session {
 public:
  Session(Backend& backend, const Tokenizer& tokenizer);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // `prompt` is the whole text so far as tokens; what the cache already holds of it is not computed
  // again. `on_text` gets whole UTF-8 sequences as they become certain. kCancelled when
  // interrupted: what was generated until then has been streamed.
  Result<Generation> generate(const std::vector<Token>& prompt, const GenerationOptions& options,
                              FunctionRef<void(std::string_view)> on_text, Progress& progress);

 private:
  // Computes what the cache does not hold of `text`. Returns the row of the last batch whose logits
  // come next.
  Result<int64_t> advance_to(const std::vector<Token>& text, int64_t chunk, Progress& progress);

  Backend* backend_;
  const Tokenizer* tokenizer_;
  int sequence_;
  std::vector<Token> cached_;  // the tokens whose keys and values the cache holds
  int64_t length_ = 0;         // the sequence's, when these were computed
};

}  // namespace quarot
