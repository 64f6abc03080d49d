#include "runtime/simulated_backend.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "runtime/rope_tables.h"
#include "runtime/vector_math.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr int64_t kQueryBlock = 64;  // queries that share one pass over the keys

void for_each_row(int64_t rows, FunctionRef<void(int64_t)> body) {
  parallel_for(rows, 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) body(r);
  });
}

// The head vectors of all rows, one a row.
MatrixRef as_heads(Matrix& rows, int64_t head_dim) {
  return {rows.data(), rows.size() / head_dim, head_dim};
}

}  // namespace

SimulatedBackend::SimulatedBackend(const Model& model, const Precision& precision)
    : SimulatedBackend(std::shared_ptr<const Model>(std::shared_ptr<void>(), &model), precision) {}

SimulatedBackend::SimulatedBackend(std::shared_ptr<const Model> model, const Precision& precision)
    : model_(std::move(model)), precision_(precision) {}

int SimulatedBackend::add_sequence() {
  auto slot = std::ranges::find(sequences_, false, &Sequence::used);
  if (slot == sequences_.end()) slot = sequences_.insert(slot, Sequence());
  slot->used = true;
  slot->length = 0;
  slot->layers.resize(static_cast<size_t>(config().layers));
  return static_cast<int>(slot - sequences_.begin());
}

int SimulatedBackend::fork_sequence(int sequence, int64_t) {
  const int fork = add_sequence();
  sequences_[static_cast<size_t>(fork)] = sequences_[static_cast<size_t>(sequence)];
  return fork;
}

void SimulatedBackend::drop_sequence(int sequence) {
  sequences_[static_cast<size_t>(sequence)] = Sequence();
}

int64_t SimulatedBackend::cache_bytes() const {
  int64_t elements = 0;
  for (const Sequence& sequence : sequences_) {
    for (const LayerCache& cache : sequence.layers)
      elements += cache.keys.size() + cache.values.size();
  }
  return elements * static_cast<int64_t>(sizeof(float));
}

void SimulatedBackend::embed(const Batch& batch) {
  batch_ = batch;
  x_.resize(batch.rows(), config().hidden);
  for_each_row(batch.rows(), [&](int64_t r) {
    std::ranges::copy(model_->embedding.row(batch.tokens[static_cast<size_t>(r)]),
                      x_.row(r).begin());
  });
  fill_rope_tables(config().rope, batch_, cos_, sin_);
}

void SimulatedBackend::exchange(State& state) {
  std::swap(batch_, state.batch);
  std::swap(x_, state.residual);
  std::swap(attention_, state.attention);
  fill_rope_tables(config().rope, batch_, cos_, sin_);
}

void SimulatedBackend::observe(int64_t layer, Space space, ConstMatrixRef rows) {
  if (observer_ != nullptr) observer_->observe(layer, space, rows);
}

void SimulatedBackend::finish_site(int64_t layer, Space site,
                                   const std::optional<Orthogonal>& transform, MatrixRef rows) {
  if (transform) transform->apply(rows);
  simulate(precision_.activations, rows);
  observe(layer, site, rows);
}

void SimulatedBackend::normalize(int64_t layer, Space site) {
  const Layer& weights = model_->layers[static_cast<size_t>(layer)];
  const std::vector<float>& gain =
      site == Space::kAttentionInput ? weights.attention_norm : weights.ffn_norm;
  input_.resize(x_.rows(), x_.cols());
  for_each_row(x_.rows(), [&](int64_t r) {
    rms_norm(x_.row(r), gain, static_cast<float>(config().norm_eps), input_.row(r));
  });
  finish_site(layer, site, model_->online.norm_output, input_);
}

void SimulatedBackend::project(const Linear& linear, ConstMatrixRef input, Matrix& output) {
  output.resize(input.rows(), linear.weight.rows());
  matmul_transposed(input, linear.weight, output);
  if (linear.bias.empty()) return;
  for_each_row(output.rows(), [&](int64_t r) { add(linear.bias, output.row(r)); });
}

void SimulatedBackend::project_qkv(int64_t layer) {
  const Layer& weights = model_->layers[static_cast<size_t>(layer)];
  project(weights[Role::kQuery], input_, query_);
  project(weights[Role::kKey], input_, key_);
  project(weights[Role::kValue], input_, value_);
}

// Head norm where the model has one, then RoPE, then R3.
void SimulatedBackend::rotate_heads(Matrix& rows, int64_t heads, const std::vector<float>& norm) {
  const int64_t head_dim = config().head_dim;
  const int64_t half = config().rope.rotary_dim / 2;
  for_each_row(rows.rows(), [&](int64_t r) {
    const float* cosine = cos_.row(r).data();
    const float* sine = sin_.row(r).data();
    for (int64_t h = 0; h < heads; ++h) {
      const std::span<float> head =
          rows.row(r).subspan(static_cast<size_t>(h * head_dim), static_cast<size_t>(head_dim));
      if (!norm.empty()) rms_norm(head, norm, static_cast<float>(config().norm_eps), head);
      float* first = head.data();
      float* second = head.data() + half;
      for (int64_t i = 0; i < half; ++i) {
        const float a = first[i];
        const float b = second[i];
        first[i] = a * cosine[i] - b * sine[i];
        second[i] = b * cosine[i] + a * sine[i];
      }
    }
  });
  if (model_->online.query_key) model_->online.query_key->apply(as_heads(rows, head_dim));
}

void SimulatedBackend::reserve(Sequence& sequence, int64_t layer, int64_t rows) {
  LayerCache& cache = sequence.layers[static_cast<size_t>(layer)];
  if (cache.keys.rows() >= rows) return;
  const int64_t capacity = std::max<int64_t>(rows, 2 * cache.keys.rows());
  for (Matrix* matrix : {&cache.keys, &cache.values}) {
    Matrix grown(capacity, config().width(Space::kKey));
    for (int64_t r = 0; r < matrix->rows(); ++r)
      std::ranges::copy(matrix->row(r), grown.row(r).begin());
    *matrix = std::move(grown);
  }
}

void SimulatedBackend::append_cache(int64_t layer) {
  const Layer& weights = model_->layers[static_cast<size_t>(layer)];
  rotate_heads(query_, config().heads, weights.query_norm);
  rotate_heads(key_, config().kv_heads, weights.key_norm);
  observe(layer, Space::kQuery, query_);
  observe(layer, Space::kKey, key_);
  observe(layer, Space::kValue, value_);
  const auto cache_rows = [&](Matrix& rows, const std::vector<float>& center,
                              const CacheQuant& quant) {
    for_each_row(center.empty() ? 0 : rows.rows(), [&](int64_t r) {
      const std::span<float> row = rows.row(r);
      for (size_t i = 0; i < row.size(); ++i) row[i] -= center[i];
    });
    simulate(quant, as_heads(rows, config().head_dim));
  };
  cache_rows(key_, weights.key_center, precision_.keys);
  cache_rows(value_, weights.value_center, precision_.values);
  for (const SequenceChunk& chunk : batch_.chunks) {
    Sequence& sequence = sequences_[static_cast<size_t>(chunk.sequence)];
    reserve(sequence, layer, chunk.position + chunk.count);
    LayerCache& cache = sequence.layers[static_cast<size_t>(layer)];
    for (int64_t r = 0; r < chunk.count; ++r) {
      std::ranges::copy(key_.row(chunk.first_row + r), cache.keys.row(chunk.position + r).begin());
      std::ranges::copy(value_.row(chunk.first_row + r),
                        cache.values.row(chunk.position + r).begin());
    }
    sequence.length = chunk.position + chunk.count;
  }
}

void SimulatedBackend::attend(int64_t layer) {
  attention_.resize(batch_.rows(), config().width(Space::kAttentionOutput));
  struct Task {
    const SequenceChunk* chunk;
    int64_t head;
    int64_t first;
  };
  std::vector<Task> tasks;
  for (const SequenceChunk& chunk : batch_.chunks) {
    for (int64_t head = 0; head < config().heads; ++head) {
      for (int64_t first = 0; first < chunk.count; first += kQueryBlock)
        tasks.push_back({&chunk, head, first});
    }
  }
  for_each_row(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    const Task& task = tasks[static_cast<size_t>(i)];
    attend_block(sequences_[static_cast<size_t>(task.chunk->sequence)], layer, *task.chunk,
                 task.head, task.first);
  });
}

// Queries first … first + kQueryBlock of one head of one chunk.
void SimulatedBackend::attend_block(const Sequence& sequence, int64_t layer,
                                    const SequenceChunk& chunk, int64_t head, int64_t first) {
  const LayerCache& cache = sequence.layers[static_cast<size_t>(layer)];
  const int64_t head_dim = config().head_dim;
  const int64_t count = std::min(kQueryBlock, chunk.count - first);
  const int64_t position = chunk.position + first;  // of the block's first query
  const int64_t window = config().sliding_windows[static_cast<size_t>(layer)];
  const int64_t begin = window > 0 ? std::max<int64_t>(position - window + 1, 0) : 0;
  const int64_t keys = position + count - begin;
  const int64_t kv_column = head / config().group() * head_dim;
  const auto slice = [&](const Matrix& matrix) {
    return ConstMatrixRef(matrix).rows(begin, keys).cols(kv_column, head_dim);
  };
  thread_local Matrix scores;
  scores.resize(count, keys);
  matmul_transposed(
      ConstMatrixRef(query_).rows(chunk.first_row + first, count).cols(head * head_dim, head_dim),
      slice(cache.keys), scores);
  const float factor = 1.0F / std::sqrt(static_cast<float>(head_dim));
  for (int64_t q = 0; q < count; ++q) {
    const int64_t last = position + q - begin + 1;  // keys the query sees end here
    const int64_t skip = window > 0 ? std::max<int64_t>(position + q - window + 1 - begin, 0) : 0;
    const std::span<float> row = scores.row(q);
    const auto seen = row.subspan(static_cast<size_t>(skip), static_cast<size_t>(last - skip));
    std::ranges::fill(row.first(static_cast<size_t>(skip)), 0.0F);
    std::ranges::fill(row.subspan(static_cast<size_t>(last)), 0.0F);
    scale(seen, factor);
    scale(seen, 1.0F / exp_shifted(seen));
  }
  matmul(scores, slice(cache.values),
         attention_.view().rows(chunk.first_row + first, count).cols(head * head_dim, head_dim));
}

void SimulatedBackend::mix_heads(int64_t layer) {
  finish_site(layer, Space::kAttentionOutput, model_->online.heads, attention_);
}

void SimulatedBackend::project_output(int64_t layer) {
  const Linear& linear = model_->layers[static_cast<size_t>(layer)][Role::kOutput];
  matmul_transposed(attention_, linear.weight, x_, true);
  if (!linear.bias.empty())
    for_each_row(x_.rows(), [&](int64_t r) { add(linear.bias, x_.row(r)); });
}

void SimulatedBackend::project_gate_up(int64_t layer) {
  const Layer& weights = model_->layers[static_cast<size_t>(layer)];
  project(weights[Role::kGate], input_, gate_);
  project(weights[Role::kUp], input_, up_);
}

void SimulatedBackend::gate(int64_t layer) {
  for_each_row(gate_.rows(), [&](int64_t r) { swiglu(gate_.row(r), up_.row(r), gate_.row(r)); });
  finish_site(layer, Space::kFfnHidden, model_->online.ffn, gate_);
}

void SimulatedBackend::project_down(int64_t layer) {
  const Linear& linear = model_->layers[static_cast<size_t>(layer)][Role::kDown];
  matmul_transposed(gate_, linear.weight, x_, true);
  if (!linear.bias.empty())
    for_each_row(x_.rows(), [&](int64_t r) { add(linear.bias, x_.row(r)); });
}

void SimulatedBackend::logits(int64_t first, int64_t count, MatrixRef out) {
  input_.resize(count, config().hidden);
  for_each_row(count, [&](int64_t r) {
    rms_norm(x_.row(first + r), model_->final_norm, static_cast<float>(config().norm_eps),
             input_.row(r));
  });
  matmul_transposed(input_, model_->head(), out);
}

}  // namespace quarot
