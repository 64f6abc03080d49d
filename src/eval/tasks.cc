#include "eval/tasks.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/statistics.h"
#include "text/utf8.h"

namespace quarot {

namespace {

using Item = std::vector<EvalWindow>;
using ItemScores = std::vector<ContinuationScore>;

constexpr int64_t kBatchRows = 1024;

// The length of the text without its trailing white space.
size_t trimmed_size(std::string_view text) {
  size_t end = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = first_code_point(text.substr(i));
    i += point.length;
    if (!is_white_space(point.value)) end = i;
  }
  return end;
}

// What stands before a context: BOS where the tokenizer adds one; an empty context needs a token.
Result<std::vector<Token>> opening(bool empty, const Tokenizer& tokenizer) {
  const std::optional<Token> bos = tokenizer.bos();
  if (bos && (tokenizer.adds_bos() || empty)) return std::vector<Token>{*bos};
  if (!empty) return std::vector<Token>();
  if (!tokenizer.end_tokens().empty()) return std::vector<Token>{tokenizer.end_tokens().front()};
  return error(ErrorCode::kInvalidArgument,
               "an empty context, and the tokenizer has neither BOS nor an end token");
}

Result<EvalWindow> encode_pair(const TaskItem::Pair& pair, const Tokenizer& tokenizer,
                               int64_t max_positions) {
  const std::string text = pair.context + pair.continuation;
  const std::vector<Token> whole = tokenizer.encode(text);
  const std::vector<Token> context =
      tokenizer.encode(std::string_view(text).substr(0, trimmed_size(pair.context)));
  EvalWindow window;
  window.scored = std::ssize(whole) - std::ssize(context);
  if (window.scored < 1 || window.scored > max_positions) {
    return error(ErrorCode::kInvalidArgument,
                 "the continuation \"{}\" adds {} tokens, expected 1 to the model's {} positions",
                 pair.continuation, window.scored, max_positions);
  }
  QUAROT_ASSIGN_OR_RETURN(window.tokens, opening(context.empty(), tokenizer));
  window.tokens.insert(window.tokens.end(), context.begin(), context.end());
  window.tokens.insert(window.tokens.end(), whole.end() - window.scored, whole.end());
  // The last token is predicted only: it needs no position.
  const int64_t surplus = std::ssize(window.tokens) - (max_positions + 1);
  if (surplus > 0) window.tokens.erase(window.tokens.begin(), window.tokens.begin() + surplus);
  return window;
}

// How many tokens all continuations of an item begin with, none of which predicts a scored one.
int64_t shared_tokens(const Item& item, const ModelConfig& config) {
  // LongRoPE's frequencies depend on what follows.
  if (item.size() < 2 || !config.rope.long_inverse_frequency.empty()) return 0;
  const std::vector<Token>& first = item.front().tokens;
  int64_t shared = std::ssize(first);
  for (const EvalWindow& window : item) {
    const auto differ = std::ranges::mismatch(first, window.tokens);
    shared = std::min(
        {shared, differ.in1 - first.begin(), std::ssize(window.tokens) - window.scored - 1});
  }
  return shared;
}

// Runs items in two batches: what the continuations of each share, then the rest of each.
class ItemScorer {
 public:
  explicit ItemScorer(Backend& model) : model_(model) {}

  int64_t rows(const Item& item) const {
    const int64_t shared = shared_tokens(item, model_.config());
    int64_t rows = shared;
    for (const EvalWindow& window : item) rows += std::ssize(window.tokens) - 1 - shared;
    return rows;
  }

  Result<std::vector<ItemScores>> score(std::span<const Item> items) {
    Batch beginnings;
    std::vector<int> parents;
    for (const Item& item : items) {
      parents.push_back(model_.add_sequence());
      append(beginnings, parents.back(), item.front(), 0, shared_tokens(item, model_.config()));
    }
    run(beginnings);
    Batch rest;
    for (size_t i = 0; i < items.size(); ++i) {
      const int64_t shared = shared_tokens(items[i], model_.config());
      for (const EvalWindow& window : items[i]) {
        append(rest, model_.fork_sequence(parents[i], shared), window, shared,
               std::ssize(window.tokens) - 1);
      }
    }
    run(rest);
    std::vector<ItemScores> scores;
    auto chunk = rest.chunks.begin();
    for (const Item& item : items) {
      scores.emplace_back();
      for (const EvalWindow& window : item) scores.back().push_back(read(window, *chunk++));
    }
    for (const SequenceChunk& child : rest.chunks) model_.drop_sequence(child.sequence);
    for (const int parent : parents) model_.drop_sequence(parent);
    QUAROT_RETURN_IF_ERROR(model_.status());
    return scores;
  }

 private:
  // Tokens begin … end − 1 of the window as the next chunk of the batch.
  static void append(Batch& batch, int sequence, const EvalWindow& window, int64_t begin,
                     int64_t end) {
    if (begin == end) return;
    batch.chunks.push_back({sequence, batch.rows(), end - begin, begin});
    batch.tokens.insert(batch.tokens.end(), window.tokens.begin() + begin,
                        window.tokens.begin() + end);
  }

  void run(const Batch& batch) {
    if (!batch.chunks.empty()) forward(model_, batch);
  }

  // The score of a window that ends with this chunk of the last batch.
  ContinuationScore read(const EvalWindow& window, const SequenceChunk& chunk) {
    const int64_t first_row = chunk.first_row + chunk.count - window.scored;
    const auto targets = std::span(window.tokens).last(static_cast<size_t>(window.scored));
    ContinuationScore score{0, true};
    for (const TokenLikelihood& token : model_.likelihoods(first_row, targets)) {
      score.log_likelihood += token.log;
      score.greedy = score.greedy && token.greedy;
    }
    return score;
  }

  Backend& model_;
};

// The first choice of which none is better, each log-likelihood divided by its norm.
size_t best_choice(const ItemScores& scores, const std::vector<double>& norm) {
  size_t best = 0;
  for (size_t i = 1; i < scores.size(); ++i) {
    if (scores[i].log_likelihood / norm[i] > scores[best].log_likelihood / norm[best]) best = i;
  }
  return best;
}

}  // namespace

Result<Task> make_task(const std::filesystem::path& path, std::vector<TaskItem> texts,
                       const Tokenizer& tokenizer, const ModelConfig& config) {
  Task task{path.stem().string(), {}, std::move(texts)};
  for (const TaskItem& text : task.texts) {
    Item& item = task.items.emplace_back();
    for (const TaskItem::Pair& pair : text.pairs) {
      Result<EvalWindow> window = encode_pair(pair, tokenizer, config.max_positions);
      if (!window.ok()) {
        return window.error().with_context(fmt::format("{}:{}", path.string(), text.line));
      }
      item.push_back(*std::move(window));
    }
  }
  return task;
}

Result<Task> open_task(const std::filesystem::path& path, int64_t max_items,
                       const Tokenizer& tokenizer, const ModelConfig& config) {
  QUAROT_ASSIGN_OR_RETURN(const std::string contents, read_text_file(path));
  QUAROT_ASSIGN_OR_RETURN(std::vector<TaskItem> texts, parse_task_file(contents, path.string()));
  if (max_items > 0 && std::ssize(texts) > max_items) {
    texts.resize(static_cast<size_t>(max_items));
  }
  return make_task(path, std::move(texts), tokenizer, config);
}

Result<std::vector<ItemScores>> score_items(Backend& model, const std::vector<Item>& items,
                                            Progress& progress) {
  for (const Item& item : items) {
    for (const EvalWindow& window : item) {
      const Batch alone{window.tokens, {{0, 0, std::ssize(window.tokens), 0}}};
      QUAROT_RETURN_IF_ERROR(check_batch(alone, model.config()));
    }
  }
  ItemScorer scorer(model);
  std::vector<ItemScores> scores;
  for (size_t begin = 0; begin < items.size();) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    size_t end = begin;
    for (int64_t rows = 0; end < items.size() && rows < kBatchRows; ++end) {
      rows += scorer.rows(items[end]);
    }
    QUAROT_ASSIGN_OR_RETURN(std::vector<ItemScores> more,
                            scorer.score(std::span(items).subspan(begin, end - begin)));
    std::ranges::move(more, std::back_inserter(scores));
    progress.advance(static_cast<int64_t>(end - begin));
    begin = end;
  }
  return scores;
}

TaskResult summarize(const std::vector<TaskItem>& items, const std::vector<ItemScores>& scores) {
  TaskResult result;
  double right_by_norm = 0;
  double loss = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const TaskItem& item = items[i];
    if (!item.gold) {
      result.correct.push_back(scores[i].front().greedy ? 1 : 0);
      loss -= scores[i].front().log_likelihood;
      continue;
    }
    const std::vector<double> alike(item.pairs.size(), 1);
    result.correct.push_back(best_choice(scores[i], alike) == *item.gold ? 1 : 0);
    right_by_norm += best_choice(scores[i], item.norm) == *item.gold ? 1 : 0;
  }
  const Estimate accuracy = estimate(result.correct);
  result.acc = accuracy.mean;
  result.standard_error = accuracy.standard_error;
  const auto count = static_cast<double>(items.size());
  if (items.front().gold) {
    result.acc_norm = right_by_norm / count;
  } else {
    result.ppl = std::exp(loss / count);
  }
  return result;
}

Result<TaskResult> measure_task(Backend& model, const Task& task, Progress& progress) {
  progress.stage("measuring " + task.name, std::ssize(task.items));
  QUAROT_ASSIGN_OR_RETURN(const std::vector<ItemScores> scores,
                          score_items(model, task.items, progress));
  return summarize(task.texts, scores);
}

}  // namespace quarot
