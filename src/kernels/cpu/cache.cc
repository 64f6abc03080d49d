#include "kernels/cpu/cache.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "kernels/cpu/cache_isa.h"

namespace quarot::cpu {
namespace {

// Queries that read the same pages together: neighbouring tokens of one sequence, and heads of one
// KV head.
struct Run {
  int64_t token, tokens;
  int64_t kv_head;
  int64_t head, heads;
};

std::vector<Run> runs_of(const AttentionTask& t) {
  std::vector<Run> runs;
  const int64_t group = t.heads / t.kv_heads;
  const int64_t heads = std::min<int64_t>(group, kAttendRows);
  const int64_t together = kAttendRows / heads;
  for (int64_t token = 0; token < t.tokens;) {
    int64_t end = token + 1;
    while (end < t.tokens && end - token < together && t.cache[end].pages == t.cache[token].pages) {
      ++end;
    }
    for (int64_t head = 0; head < t.heads;) {
      const int64_t kv_head = head / group;
      const int64_t count = std::min(heads, (kv_head + 1) * group - head);
      runs.push_back({token, end - token, kv_head, head, count});
      head += count;
    }
    token = end;
  }
  return runs;
}

struct Span {
  int64_t begin, end;  // positions
};

Span seen_by(const AttentionTask& t, int64_t token) {
  const int64_t end = t.cache[token].position + 1;
  return {t.window == 0 ? 0 : std::max<int64_t>(end - t.window, 0), end};
}

Span seen_by(const AttentionTask& t, const Run& run) {
  Span all = seen_by(t, run.token);
  for (int64_t i = 1; i < run.tokens; ++i) {
    const Span s = seen_by(t, run.token + i);
    all = {std::min(all.begin, s.begin), std::max(all.end, s.end)};
  }
  return all;
}

int64_t first_chunk(const Span& s) { return s.begin / kChunkTokens; }
int64_t last_chunk(const Span& s) { return (s.end + kChunkTokens - 1) / kChunkTokens; }

AttendTask attend_task(const AttentionTask& t, const Run& run, int64_t chunk) {
  const CacheLayout& l = *t.layout;
  const Span all = seen_by(t, run);
  AttendTask a;
  a.pages = t.cache[run.token].pages;
  a.page_offset = t.page_offset + run.kv_head * l.page_bytes();
  a.first_page = std::max(chunk * kChunkTokens, all.begin) / kPageTokens;
  a.last_page = (std::min((chunk + 1) * kChunkTokens, all.end) + kPageTokens - 1) / kPageTokens;
  a.head_dim = l.head_dim;
  a.groups = l.groups;
  a.k_bits = l.k_bits;
  a.v_bits = l.v_bits;
  a.k_scales = l.k_scales();
  a.k_zeros = l.k_zeros();
  a.v_words = l.v_words();
  a.v_scales = l.v_scales();
  a.v_zeros = l.v_zeros();
  for (int64_t token = run.token; token < run.token + run.tokens; ++token) {
    for (int64_t head = run.head; head < run.head + run.heads; ++head) {
      a.q[a.rows] = t.q + token * t.q_stride + head * l.head_dim;
      const Span s = seen_by(t, token);
      a.begin[a.rows] = s.begin;
      a.end[a.rows] = s.end;
      ++a.rows;
    }
  }
  return a;
}

}  // namespace

Status check(const CacheLayout& l) {
  const auto known = [](int bits) {
    return bits == 2 || bits == 3 || bits == 4 || bits == 8 || bits == 32;
  };
  const bool groups_fit = l.groups == 1 || (l.groups > 1 && l.groups <= kMaxCacheGroups &&
                                            l.head_dim % (l.groups * 32) == 0);
  const int64_t multiple = l.k_bits == 3 ? 32 : 16;
  if (known(l.k_bits) && known(l.v_bits) && l.head_dim > 0 && l.head_dim <= 1024 &&
      l.head_dim % multiple == 0 && groups_fit) {
    return {};
  }
  return error(ErrorCode::kInvalidArgument,
               "a cache of {} and {} bits with heads of {} in {} groups: expected 2, 3, 4, 8 or 32 "
               "bits, heads of up to 1024 that are a multiple of {}, and at most {} groups of a "
               "multiple of 32",
               l.k_bits, l.v_bits, l.head_dim, l.groups, multiple, kMaxCacheGroups);
}

namespace {

// Neighbouring tokens' values share words, 32 tokens whole ones of any bits. The first token from
// `token` on whose words no token before it writes.
int64_t next_own_words(const HeadsTask& t, int64_t token) {
  if (t.y != nullptr || !t.values || token == 0) return token;
  while (token < t.tokens && t.cache[token].position % 32 != 0 &&
         t.cache[token].pages == t.cache[token - 1].pages) {
    ++token;
  }
  return token;
}

}  // namespace

void heads(const Kernels& kernels, const HeadsTask& task) {
  constexpr int64_t kElementsPerThread = 1 << 12;  // fewer are not worth waking one
  const int64_t grain = kElementsPerThread / (task.heads * task.head_dim) + 1;
  parallel_for(task.tokens, grain, [&](int64_t first, int64_t last) {
    AlignedVector<float> scratch(static_cast<size_t>(2 * ((task.head_dim + 15) / 16 * 16)));
    kernels.floats->heads(task, next_own_words(task, first), next_own_words(task, last),
                          scratch.data());
  });
}

void attention(const Kernels& kernels, const AttentionTask& task) {
  const CacheLayout& l = *task.layout;
  const std::vector<Run> runs = runs_of(task);
  // Each query's chunks one after the other: what a chunk gives does not depend on who computes it.
  struct Item {
    const Run* run;
    int64_t chunk;
    int64_t state;  // of the run's first query in this chunk
  };
  const int64_t state_size = l.head_dim + kStateTail;
  std::vector<Item> items;
  std::vector<int64_t> first_state;
  int64_t states = 0;
  for (const Run& run : runs) {
    first_state.push_back(states);
    const Span all = seen_by(task, run);
    for (int64_t c = first_chunk(all); c < last_chunk(all); ++c) {
      items.push_back({&run, c, states});
      states += run.tokens * run.heads;
    }
  }
  first_state.push_back(states);
  AlignedVector<float> state(static_cast<size_t>(states * state_size));
  parallel_each(static_cast<int64_t>(items.size()), [&](int64_t i) {
    const Item& item = items[static_cast<size_t>(i)];
    AttendTask a = attend_task(task, *item.run, item.chunk);
    for (int r = 0; r < a.rows; ++r) a.state[r] = state.data() + (item.state + r) * state_size;
    kernels.floats->attend(a);
  });
  parallel_for(static_cast<int64_t>(runs.size()), 16, [&](int64_t first, int64_t last) {
    AlignedVector<float> sum(static_cast<size_t>(state_size));
    AlignedVector<float> output(static_cast<size_t>(l.head_dim));
    const int64_t y_head = task.y_head != 0 ? task.y_head : l.head_dim;
    for (int64_t i = first; i < last; ++i) {
      const Run& run = runs[i];
      const int64_t rows = run.tokens * run.heads;
      const int64_t chunks = (first_state[i + 1] - first_state[i]) / rows;
      for (int64_t r = 0; r < rows; ++r) {
        kernels.floats->merge(state.data() + (first_state[i] + r) * state_size, chunks,
                              rows * state_size, l.groups, l.head_dim, sum.data(), output.data());
        std::copy_n(output.data(), y_head,
                    task.y + (run.token + r / run.heads) * task.y_stride +
                        (run.head + r % run.heads) * y_head);
      }
    }
  });
}

}  // namespace quarot::cpu
