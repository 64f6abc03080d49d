// Text from a prompt: prefill in chunks, then one token at a time, streamed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/progress.h"
#include "quarot/generation.h"
#include "runtime/backend.h"

namespace quarot {

// One text and its cache: a further turn of a conversation only adds to it. Sessions of one backend
// may run in several threads; they take turns, a batch each.
class Session {
 public:
  Session(Backend& backend, const Tokenizer& tokenizer);
  // A fork: begins with what the other holds, and shares its memory where the cache is paged.
  Session(const Session& other);
  ~Session();
  Session& operator=(const Session&) = delete;

  // The tokens whose keys and values the cache holds.
  const std::vector<Token>& tokens() const { return cached_; }

  // `prompt` is the whole text so far as tokens; what the cache already holds of it is not computed
  // again. `on_text` gets whole UTF-8 sequences as they become certain. kCancelled when
  // interrupted: what was generated until then has been streamed.
  Result<Generation> generate(const std::vector<Token>& prompt, const GenerationOptions& options,
                              FunctionRef<void(std::string_view)> on_text, Progress& progress);

  // Tokens that follow in a session.
  struct Step {
    Session* session;
    std::span<const Token> tokens;  // one or more
  };
  // All steps in one batch, each of another session of the same backend. logits [steps, vocab]:
  // what follows each step's last token. kInvalidArgument, with nothing changed, for what no batch
  // can hold.
  static Status run(std::span<const Step> steps, MatrixRef logits);

 private:
  // Computes what the cache does not hold of `text`, and what follows it into logits_.
  Status advance_to(const std::vector<Token>& text, int64_t chunk, Progress& progress);
  // LongRoPE turns a whole sequence by one list of frequencies, chosen by its length: how many of
  // the cached tokens are of use in a sequence of `length`.
  int64_t reusable(int64_t length) const;
  Status check_length(int64_t length) const;

  Backend* backend_;
  const Tokenizer* tokenizer_;
  int sequence_;
  std::vector<Token> cached_;
  int64_t length_ = 0;  // of the sequence the cached tokens were computed for
  Matrix logits_;       // [1, vocab]
};

}  // namespace quarot
