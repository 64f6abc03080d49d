// SimulatedCudaBackend between the projections: q, k and v on their way into the cache, attention.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cuda/plain/plain.h"
#include "runtime/cuda/simulated_cuda_backend.h"

namespace quarot::cuda {

namespace {

constexpr int64_t kScores = 1 << 26;  // held at a time

}  // namespace

void SimulatedCudaBackend::append_cache(int64_t layer) {
  run([&]() -> Status {
    const FloatLayer& weights = this->layer(layer);
    const int64_t q_width = config_.width(Space::kQuery);
    const int64_t kv_width = config_.width(Space::kKey);
    HeadsTask values;
    values.tokens = rows();
    values.heads = config_.kv_heads;
    values.head_dim = config_.head_dim;
    values.x_stride = q_width + 2 * kv_width;
    values.x = qkv_.data() + q_width + kv_width;
    values.centre = weights.value_center.data();
    values.eps = static_cast<float>(config_.norm_eps);
    values.y = value_.data();
    values.y_stride = kv_width;
    HeadsTask keys = values;
    keys.x = qkv_.data() + q_width;
    keys.gain = weights.key_norm.data();
    keys.cos = device_cos_.data();
    keys.sin = device_sin_.data();
    keys.rotary = config_.rope.rotary_dim;
    keys.hadamard = query_key_ ? &query_key_->task : nullptr;
    keys.centre = weights.key_center.data();
    keys.y = key_.data();
    HeadsTask queries = keys;
    queries.heads = config_.heads;
    queries.x = qkv_.data();
    queries.gain = weights.query_norm.data();
    queries.centre = nullptr;
    queries.y = query_.data();
    queries.y_stride = q_width;
    QUAROT_RETURN_IF_ERROR(finish_heads(layer, Space::kQuery, queries));
    QUAROT_RETURN_IF_ERROR(finish_heads(layer, Space::kKey, keys));
    QUAROT_RETURN_IF_ERROR(finish_heads(layer, Space::kValue, values));
    QUAROT_RETURN_IF_ERROR(store(layer, false));
    return store(layer, true);
  });
}

// Normed and turned, seen, and less the centre.
Status SimulatedCudaBackend::finish_heads(int64_t layer, Space space, HeadsTask task) {
  HeadsTask again;  // on what it has written
  again.tokens = task.tokens;
  again.heads = task.heads;
  again.head_dim = task.head_dim;
  again.x = again.y = task.y;
  again.x_stride = again.y_stride = task.y_stride;
  HeadsTask shift = again;
  shift.centre = std::exchange(task.centre, nullptr);
  const int64_t width = task.heads * task.head_dim;
  const bool in_half = precision_.half_online && task.hadamard != nullptr;
  if (in_half) again.hadamard = std::exchange(task.hadamard, nullptr);
  QUAROT_RETURN_IF_ERROR(heads(task, stream()));
  if (in_half) {
    QUAROT_RETURN_IF_ERROR(round_to_half(task.y, task.tokens * width, stream()));
    QUAROT_RETURN_IF_ERROR(heads(again, stream()));
    QUAROT_RETURN_IF_ERROR(round_to_half(task.y, task.tokens * width, stream()));
  }
  QUAROT_RETURN_IF_ERROR(observe(layer, space, task.y, width));
  return shift.centre != nullptr ? heads(shift, stream()) : Status();
}

// Into the cache; quantised, unless whole pages will be.
Status SimulatedCudaBackend::store(int64_t layer, bool values) {
  const CacheQuant& quant = values ? precision_.values : precision_.keys;
  float* x = values ? value_.data() : key_.data();
  if (quant.enabled() && !precision_.pages.enabled()) {
    QUAROT_RETURN_IF_ERROR(
        simulate({quant.bits, group_size(quant, config_.head_dim), quant.clip, false}, x,
                 rows() * config_.kv_heads, config_.head_dim, stream()));
  }
  const int64_t width = config_.width(Space::kKey);
  for (const SequenceChunk& chunk : host_batch_.chunks) {
    QUAROT_RETURN_IF_ERROR(
        copy_floats(cache_.at(chunk.sequence, layer, values) + chunk.position * width,
                    x + chunk.first_row * width, chunk.count * width, stream()));
  }
  return {};
}

// A page is quantised when the first query comes that is a whole page, and what the recipe calls
// recent, after it.
void SimulatedCudaBackend::attend(int64_t layer) {
  run([&]() -> Status {
    const PageQuant& pages = precision_.pages;
    for (const SequenceChunk& chunk : host_batch_.chunks) {
      for (int64_t row = 0; row < chunk.count;) {
        int64_t count = chunk.count - row;
        if (pages.enabled()) {
          const int64_t position = chunk.position + row;
          const int64_t into_page = position % quarot::kPageTokens;
          const int64_t page = (position - pages.recent) / quarot::kPageTokens - 1;
          if (into_page == 0 && page >= 0) {
            QUAROT_RETURN_IF_ERROR(cache_.quantize_page(chunk, layer, page, stream()));
          }
          count = std::min(quarot::kPageTokens - into_page, count);
        }
        QUAROT_RETURN_IF_ERROR(attend_rows(chunk, layer, row, count));
        row += count;
      }
    }
    return {};
  });
}

Status SimulatedCudaBackend::attend_rows(const SequenceChunk& chunk, int64_t layer, int64_t first,
                                         int64_t count) {
  const int64_t row_scores = config_.heads * (chunk.position + first + count);
  const int64_t block = std::clamp<int64_t>(kScores / row_scores, 1, count);
  const Result<bool> grown = scores_.grow(block * row_scores, "scores of attention");
  if (!grown.ok()) return grown.error();
  for (int64_t row = first; row < first + count; row += block) {
    QUAROT_RETURN_IF_ERROR(attend_block(chunk, layer, row, std::min(block, first + count - row)));
  }
  return {};
}

// Queries first … first + count − 1 of a chunk: scores [head][query][key], softmax, output. One
// batched product takes, of every KV head, the same one of its query heads.
Status SimulatedCudaBackend::attend_block(const SequenceChunk& chunk, int64_t layer, int64_t first,
                                          int64_t count) {
  const int64_t window = config_.sliding_windows[static_cast<size_t>(layer)];
  Softmax task;
  task.scores = scores_.data();
  task.heads = config_.heads;
  task.queries = count;
  task.position = chunk.position + first;
  task.first_key = window > 0 ? std::max<int64_t>(task.position - window + 1, 0) : 0;
  task.keys = task.position + count - task.first_key;
  task.window = window;
  task.factor = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));

  const int64_t dim = config_.head_dim;
  const int64_t kv_width = config_.width(Space::kKey);
  const int64_t width = config_.width(Space::kQuery);
  const float* keys = cache_.at(chunk.sequence, layer, false) + task.first_key * kv_width;
  const float* values = cache_.at(chunk.sequence, layer, true) + task.first_key * kv_width;
  const int64_t at = (chunk.first_row + first) * width;
  const int64_t scores_apart = config_.group() * count * task.keys;  // of two KV heads
  const int64_t rows_apart = config_.group() * dim;
  for (int64_t g = 0; g < config_.group(); ++g) {
    QUAROT_RETURN_IF_ERROR(context_.blas().multiply_each(
        {.m = task.keys, .n = count, .k = dim}, {keys, kv_width, CUBLAS_OP_T, dim},
        {query_.data() + at + g * dim, width, CUBLAS_OP_N, rows_apart},
        {task.scores + g * count * task.keys, task.keys, CUBLAS_OP_N, scores_apart},
        config_.kv_heads, "attention"));
  }
  QUAROT_RETURN_IF_ERROR(softmax(task, stream()));
  for (int64_t g = 0; g < config_.group(); ++g) {
    QUAROT_RETURN_IF_ERROR(context_.blas().multiply_each(
        {.m = dim, .n = count, .k = task.keys}, {values, kv_width, CUBLAS_OP_N, dim},
        {task.scores + g * count * task.keys, task.keys, CUBLAS_OP_N, scores_apart},
        {attention_.data() + at + g * dim, width, CUBLAS_OP_N, rows_apart}, config_.kv_heads,
        "attention"));
  }
  return {};
}

}  // namespace quarot::cuda
