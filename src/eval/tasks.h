// Zero-shot tasks by the definitions of lm-evaluation-harness: how likely the model thinks each
// continuation of a context. DESIGN.md, section 6.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "eval/perplexity.h"
#include "formats/task_file.h"
#include "runtime/backend.h"

namespace quarot {

// A task as the model sees it: tokens.
struct Task {
  std::string name;  // of the file, without .jsonl

  // The continuations of each item behind their contexts; scored is how many tokens of each are
  // the continuation's.
  std::vector<std::vector<EvalWindow>> items;

  std::vector<TaskItem> texts;  // of the items
};

// Contexts begin with BOS where the tokenizer adds one; an empty one is BOS, or an end token.
// Trailing white space of a context belongs to the continuation, whose tokens are those of the
// whole text beyond as many as the context alone has. What is longer than the model's positions
// loses its beginning. `max_items` 0: all.
//
// Errors name the file and the line: kCorrupt as parse_task_file(), kInvalidArgument for a
// continuation that adds no token or is longer than the model's positions.
Result<Task> make_task(const std::filesystem::path& path, std::vector<TaskItem> texts,
                       const Tokenizer& tokenizer, const ModelConfig& config);
Result<Task> open_task(const std::filesystem::path& path, int64_t max_items,
                       const Tokenizer& tokenizer, const ModelConfig& config);

struct ContinuationScore {
  double log_likelihood = 0;  // summed over the continuation's tokens, nats
  bool greedy = false;        // each token is the model's first choice
  bool operator==(const ContinuationScore&) const = default;
};

// Of every continuation of every item. What the continuations of an item begin with alike runs
// once; the scores do not depend on that, nor on which items are in a batch together, but where the
// recipe keeps channels by what a batch holds (KeptChannels::threshold).
Result<std::vector<std::vector<ContinuationScore>>> score_items(
    Backend& model, const std::vector<std::vector<EvalWindow>>& items, Progress& progress);

struct TaskResult {
  std::vector<double> correct;  // 1 or 0 for each item
  double acc = 0;               // their mean: the likeliest choice is right, or greedy decoding is
  double standard_error = 0;    // of acc; NaN for one item
  std::optional<double> acc_norm;  // of choices: the same by log-likelihood a character
  std::optional<double> ppl;       // without choices: exp of the mean loss of a continuation
};

TaskResult summarize(const std::vector<TaskItem>& items,
                     const std::vector<std::vector<ContinuationScore>>& scores);

Result<TaskResult> measure_task(Backend& model, const Task& task, Progress& progress);

}  // namespace quarot
