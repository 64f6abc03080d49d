// Zero-shot tasks as JSON lines, one item a line:
//
//   {"pairs": [["Question: …\nAnswer:", " one choice"], …], "norm": [10, …], "gold": 0}
//   {"pairs": [["a passage without its last", " word"]]}
//
// `pairs` are contexts and continuations. With `gold`, the right one of several choices; `norm` is
// what lm-evaluation-harness divides a choice's log-likelihood by for acc_norm: its characters.
// Without, the one continuation is what greedy decoding should give (LAMBADA). Other fields are
// ignored.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quarot/status.h"

namespace quarot {

struct TaskItem {
  struct Pair {
    std::string context, continuation;
  };
  std::vector<Pair> pairs;   // one or more
  std::vector<double> norm;  // > 0, one a pair; empty without gold
  std::optional<size_t> gold;
  int64_t line = 0;  // of the file, from 1
};

// kCorrupt, naming `where` and the line; also for a file without items, or where some items have a
// gold choice and some have none. Empty lines are skipped.
Result<std::vector<TaskItem>> parse_task_file(std::string_view contents, const std::string& where);

}  // namespace quarot
