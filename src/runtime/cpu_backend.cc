#include "runtime/cpu_backend.h"

#include <cmath>

#include "base/parallel.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/table.h"
#include "runtime/rope_tables.h"

namespace quarot {

namespace {

constexpr int64_t kLanes = 16;  // head vectors in the cache are a multiple of this

int64_t padded(int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

int stored_bits(const CacheQuant& quant) {
  if (!quant.enabled()) return 32;
  return quant.bits > 4 ? 8 : quant.bits;
}

int levels_bits(const CacheQuant& quant) { return quant.enabled() ? quant.bits : 32; }

const float* data_or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

CacheLayout cache_layout(const ModelConfig& config, const Precision& precision) {
  CacheLayout layout;
  layout.head_dim = padded(config.head_dim);
  if (precision.pages.enabled()) {
    layout.k_bits = layout.v_bits = 32;
    return layout;
  }
  layout.k_bits = stored_bits(precision.keys);
  if (layout.k_bits == 3 && layout.head_dim % 32 != 0) layout.k_bits = 4;
  layout.v_bits = stored_bits(precision.values);
  layout.groups = config.head_dim / group_size(precision.keys, config.head_dim);
  return layout;
}

CpuBackend::CpuBackend(std::shared_ptr<const Model> model, const Precision& precision,
                       const cpu::Kernels& kernels)
    : cache_(cache_layout(model->config, precision), model->config.layers * model->config.kv_heads),
      model_(std::move(model)),
      precision_(precision),
      kernels_(&kernels),
      norm_output_(online(model_->online.norm_output)),
      heads_(online(model_->online.heads)),
      query_key_(online(model_->online.query_key)),
      ffn_(online(model_->online.ffn)) {}

CpuBackend::Online CpuBackend::online(const std::optional<Orthogonal>& transform) {
  Online online;
  if (!transform || transform->is_identity()) return online;
  const std::optional<Orthogonal::Fast> fast = transform->fast();
  online.fast = fast && fast->signs.empty();
  if (!online.fast) {
    online.dense = transform;
    return online;
  }
  const HadamardPlan& plan = *fast->plan;
  // Kernels take the factor as ±1 and scale once at the end.
  const double unit = plan.is_hadamard ? std::sqrt(static_cast<double>(plan.m)) : 1.0;
  for (const double entry : plan.factor)
    online.factor.push_back(static_cast<float>(std::round(entry * unit * 0x1p20) * 0x1p-20));
  const double scale = 1 / (std::sqrt(std::ldexp(1.0, plan.log2)) * unit);
  online.task = {plan.m, plan.log2, fast->inner, online.factor.data(), static_cast<float>(scale)};
  return online;
}

void CpuBackend::embed(const Batch& batch) {
  batch_ = batch;
  x_.resize(batch.rows(), config().hidden);
  parallel_for(batch.rows(), 16, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      model_->embedding.read_row(batch.tokens[static_cast<size_t>(r)], x_.row(r));
  });
  fill_rope_tables(config().rope, batch, cos_, sin_);
}

void CpuBackend::transform_input(int64_t layer, Space site, RowTask task, const Online& transform) {
  task.hadamard = transform.hadamard();
  if (transform.dense) {
    normed_.resize(task.rows, task.width);
    task.y = normed_.data();
    task.y_stride = normed_.cols();
    cpu::rows(*kernels_, task);
    transform.dense->apply(normed_);
    task = {.rows = task.rows, .width = task.width, .x = normed_.data(), .x_stride = task.width};
  }
  set_input(layer, site, task);
}

void CpuBackend::normalize(int64_t layer, Space site) {
  const Layer& weights = this->layer(layer);
  RowTask task;
  task.rows = x_.rows();
  task.width = x_.cols();
  task.source = RowSource::kRmsNorm;
  task.x = x_.data();
  task.x_stride = x_.cols();
  task.gain =
      site == Space::kAttentionInput ? weights.attention_norm.data() : weights.ffn_norm.data();
  task.eps = static_cast<float>(config().norm_eps);
  transform_input(layer, site, task, norm_output_);
}

void CpuBackend::project_qkv(int64_t layer) {
  qkv_.resize(x_.rows(), config().width(Space::kQuery) + 2 * config().width(Space::kKey));
  project(layer, Space::kAttentionInput, qkv_, false);
}

HeadsTask CpuBackend::heads_task() const {
  HeadsTask task;
  task.tokens = x_.rows();
  task.heads = config().kv_heads;
  task.head_dim = config().head_dim;
  task.x_stride = qkv_.cols();
  task.eps = static_cast<float>(config().norm_eps);
  task.layout = &cache_.layout();
  return task;
}

HeadsTask CpuBackend::query_heads(int64_t layer) const {
  HeadsTask task = heads_task();
  task.heads = config().heads;
  task.x = qkv_.data();
  if (heads_ready_) return task;
  task.gain = data_or_null(this->layer(layer).query_norm);
  task.rotary = config().rope.rotary_dim;
  task.cos = cos_.data();
  task.sin = sin_.data();
  task.hadamard = query_key_.hadamard();
  return task;
}

HeadsTask CpuBackend::key_heads(int64_t layer) const {
  HeadsTask task = query_heads(layer);
  task.heads = config().kv_heads;
  task.x = qkv_.data() + config().width(Space::kQuery);
  if (!heads_ready_) task.gain = data_or_null(this->layer(layer).key_norm);
  return task;
}

HeadsTask CpuBackend::value_heads() const {
  HeadsTask task = heads_task();
  task.x = qkv_.data() + config().width(Space::kQuery) + config().width(Space::kKey);
  return task;
}

void CpuBackend::append_cache(int64_t layer) {
  places_.clear();
  for (const SequenceChunk& chunk : batch_.chunks) {
    std::byte* const* pages =
        cache_.reserve(chunk.sequence, chunk.position, chunk.position + chunk.count);
    for (int64_t i = 0; i < chunk.count; ++i) places_.push_back({pages, chunk.position + i});
  }
  const auto store = [&](HeadsTask task, const std::vector<float>& centre, const CacheQuant& quant,
                         bool values) {
    task.centre = data_or_null(centre);
    task.cache = places_.data();
    task.page_offset = layer * config().kv_heads * cache_.layout().page_bytes();
    task.values = values;
    task.bits = precision_.pages.enabled() ? 32 : levels_bits(quant);
    task.clip = quant.clip;
    cpu::heads(*kernels_, task);
  };
  store(key_heads(layer), this->layer(layer).key_center, precision_.keys, false);
  store(value_heads(), this->layer(layer).value_center, precision_.values, true);

  HeadsTask queries = query_heads(layer);
  query_.resize(x_.rows(), config().heads * cache_.layout().head_dim);
  queries.scale = 1.0F / std::sqrt(static_cast<float>(config().head_dim));
  queries.y = query_.data();
  queries.y_stride = query_.cols();
  queries.y_head = cache_.layout().head_dim;
  cpu::heads(*kernels_, queries);
}

void CpuBackend::attend(int64_t layer) {
  attention_.resize(x_.rows(), config().width(Space::kAttentionOutput));
  attend_rows(layer, 0, x_.rows());
}

void CpuBackend::attend_rows(int64_t layer, int64_t first, int64_t count) {
  AttentionTask task;
  task.tokens = count;
  task.heads = config().heads;
  task.kv_heads = config().kv_heads;
  task.q = query_.row_data(first);
  task.q_stride = query_.cols();
  task.cache = places_.data() + first;
  task.layout = &cache_.layout();
  task.page_offset = layer * config().kv_heads * cache_.layout().page_bytes();
  task.window = config().sliding_windows[static_cast<size_t>(layer)];
  task.y = attention_.row_data(first);
  task.y_stride = attention_.cols();
  task.y_head = config().head_dim;
  cpu::attention(*kernels_, task);
}

void CpuBackend::mix_heads(int64_t layer) {
  RowTask task;
  task.rows = attention_.rows();
  task.width = attention_.cols();
  task.x = attention_.data();
  task.x_stride = attention_.cols();
  transform_input(layer, Space::kAttentionOutput, task, heads_);
}

void CpuBackend::project_output(int64_t layer) {
  project(layer, Space::kAttentionOutput, x_, true);
}

void CpuBackend::project_gate_up(int64_t layer) {
  gate_up_.resize(x_.rows(), 2 * config().ffn);
  project(layer, Space::kFfnInput, gate_up_, false);
}

void CpuBackend::gate(int64_t layer) {
  RowTask task;
  task.rows = gate_up_.rows();
  task.width = config().ffn;
  task.source = RowSource::kSwiGlu;
  task.x = gate_up_.data();
  task.x_stride = gate_up_.cols();
  task.up = gate_up_.data() + config().ffn;
  task.up_stride = gate_up_.cols();
  transform_input(layer, Space::kFfnHidden, task, ffn_);
}

void CpuBackend::project_down(int64_t layer) { project(layer, Space::kFfnHidden, x_, true); }

void CpuBackend::logits(int64_t first, int64_t count, MatrixRef out) {
  normed_.resize(count, config().hidden);
  RowTask task;
  task.rows = count;
  task.width = config().hidden;
  task.source = RowSource::kRmsNorm;
  task.x = x_.row_data(first);
  task.x_stride = x_.cols();
  task.gain = model_->final_norm.data();
  task.eps = static_cast<float>(config().norm_eps);
  task.y = normed_.data();
  task.y_stride = normed_.cols();
  cpu::rows(*kernels_, task);
  cpu::multiply(*kernels_, normed_, model_->head(), out);
}

}  // namespace quarot
