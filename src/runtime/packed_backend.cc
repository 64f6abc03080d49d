#include "runtime/packed_backend.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/rows.h"
#include "runtime/rope_tables.h"
#include "runtime/vector_math.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

// Linears that read the same rows, one below the other: a single product computes them all.
Result<cpu::PackedWeight> pack_together(Layer& layer, std::initializer_list<Role> roles) {
  const QuantizedWeight& first = *layer[*roles.begin()].quantized;
  int64_t outputs = 0;
  bool any_bias = false;
  for (const Role role : roles) {
    outputs += layer[role].quantized->values.rows();
    any_bias = any_bias || !layer[role].bias.empty();
  }
  BasicMatrix<int8_t> values(outputs, first.values.cols());
  Matrix scales(outputs, first.scales.cols());
  std::vector<float> bias;
  int64_t row = 0;
  for (const Role role : roles) {
    Linear& linear = layer[role];
    const int64_t rows = linear.quantized->values.rows();
    std::ranges::copy(linear.quantized->values.elements(), values.row_data(row));
    std::ranges::copy(linear.quantized->scales.elements(), scales.row_data(row));
    if (any_bias) {
      linear.bias.resize(static_cast<size_t>(rows), 0.0F);
      bias.insert(bias.end(), linear.bias.begin(), linear.bias.end());
    }
    row += rows;
    linear.quantized.reset();
  }
  return cpu::pack_weight(first.quant.bits, values.view(), scales, bias);
}

Status check_fast(const std::optional<Orthogonal>& transform, const char* what) {
  if (!transform || transform->is_identity()) return {};
  const std::optional<Orthogonal::Fast> fast = transform->fast();
  if (fast && fast->signs.empty()) return {};
  return error(ErrorCode::kUnsupported,
               "the transform of the {} is no fast Hadamard: such a model runs simulated", what);
}

int cache_bits(const CacheQuant& quant) { return quant.enabled() ? quant.bits : 32; }

CacheLayout layout_of(const ModelConfig& config, const Precision& precision) {
  const int64_t group = group_size(precision.keys, config.head_dim);
  return {config.head_dim, cache_bits(precision.keys), cache_bits(precision.values),
          config.head_dim / group};
}

}  // namespace

PackedBackend::PackedBackend(const ModelConfig& config, const Precision& precision,
                             const CacheLayout& layout)
    : config_(config), precision_(precision), cache_(layout, config.layers * config.kv_heads) {}

Status PackedBackend::check(const Model& model, const Precision& precision) {
  for (const Layer& layer : model.layers) {
    for (const Linear& linear : layer.linears) {
      if (!linear.quantized || !linear.quantized->quant.symmetric ||
          (linear.quantized->quant.bits != 4 && linear.quantized->quant.bits != 8)) {
        return error(ErrorCode::kUnsupported, "packed weights are symmetric, of 4 or 8 bits");
      }
    }
  }
  const ActivationQuant& a = precision.activations;
  if (!a.enabled() || !a.symmetric) {
    return error(ErrorCode::kUnsupported,
                 "packed weights are multiplied with symmetric activations of 2 to 8 bits");
  }
  const OnlineTransforms& online = model.online;
  QUAROT_RETURN_IF_ERROR(check_fast(online.norm_output, "norm outputs"));
  QUAROT_RETURN_IF_ERROR(check_fast(online.heads, "attention output"));
  QUAROT_RETURN_IF_ERROR(check_fast(online.query_key, "queries and keys"));
  QUAROT_RETURN_IF_ERROR(check_fast(online.ffn, "FFN"));
  return cpu::check(layout_of(model.config, precision));
}

Result<std::unique_ptr<PackedBackend>> PackedBackend::create(Model model,
                                                             const Precision& precision) {
  QUAROT_RETURN_IF_ERROR(check(model, precision));
  const CacheLayout layout = layout_of(model.config, precision);
  std::unique_ptr<PackedBackend> backend(new PackedBackend(model.config, precision, layout));
  QUAROT_ASSIGN_OR_RETURN(backend->kernels_, cpu::kernels());
  QUAROT_RETURN_IF_ERROR(backend->pack(model));
  return backend;
}

std::unique_ptr<PackedBackend::OnlineHadamard> PackedBackend::online(
    const std::optional<Orthogonal>& transform) {
  if (!transform || transform->is_identity()) return nullptr;
  auto hadamard = std::make_unique<OnlineHadamard>();
  const Orthogonal::Fast fast = *transform->fast();
  const HadamardPlan& plan = *fast.plan;
  // Kernels take the factor as ±1 and scale once at the end.
  const double unit = plan.is_hadamard ? std::sqrt(static_cast<double>(plan.m)) : 1.0;
  for (const double entry : plan.factor)
    hadamard->factor.push_back(static_cast<float>(std::round(entry * unit * 0x1p20) * 0x1p-20));
  const double scale = 1 / (std::sqrt(std::ldexp(1.0, plan.log2)) * unit);
  hadamard->task = {plan.m, plan.log2, fast.inner, hadamard->factor.data(),
                    static_cast<float>(scale)};
  return hadamard;
}

Status PackedBackend::pack(Model& model) {
  norm_output_ = online(model.online.norm_output);
  heads_ = online(model.online.heads);
  query_key_ = online(model.online.query_key);
  ffn_ = online(model.online.ffn);
  embedding_ = std::move(model.embedding);
  lm_head_ = std::move(model.lm_head);
  final_norm_ = std::move(model.final_norm);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    Layer& layer = model.layers[i];
    PackedLayer packed;
    QUAROT_ASSIGN_OR_RETURN(packed.qkv,
                            pack_together(layer, {Role::kQuery, Role::kKey, Role::kValue}));
    QUAROT_ASSIGN_OR_RETURN(packed.output, pack_together(layer, {Role::kOutput}));
    QUAROT_ASSIGN_OR_RETURN(packed.gate_up, pack_together(layer, {Role::kGate, Role::kUp}));
    QUAROT_ASSIGN_OR_RETURN(packed.down, pack_together(layer, {Role::kDown}));
    packed.attention_norm = std::move(layer.attention_norm);
    packed.ffn_norm = std::move(layer.ffn_norm);
    packed.query_norm = std::move(layer.query_norm);
    packed.key_norm = std::move(layer.key_norm);
    packed.key_center = std::move(layer.key_center);
    packed.value_center = std::move(layer.value_center);
    packed.window = config_.sliding_windows[i];
    layers_.push_back(std::move(packed));
  }
  return {};
}

void PackedBackend::embed(const Batch& batch) {
  batch_ = batch;
  x_.resize(batch.rows(), config_.hidden);
  for (int64_t r = 0; r < batch.rows(); ++r) {
    std::ranges::copy(embedding_.row(batch.tokens[static_cast<size_t>(r)]), x_.row(r).begin());
  }
  fill_rope_tables(config_.rope, batch, cos_, sin_);
  places_.clear();
  for (const SequenceChunk& chunk : batch.chunks) {
    std::byte* const* pages =
        cache_.reserve(chunk.sequence, chunk.position, chunk.position + chunk.count);
    for (int64_t i = 0; i < chunk.count; ++i) places_.push_back({pages, chunk.position + i});
  }
}

RowTask PackedBackend::row_task(int64_t rows, int64_t width) const {
  RowTask task;
  task.rows = rows;
  task.width = width;
  task.bits = precision_.activations.bits;
  task.clip = precision_.activations.clip;
  return task;
}

// Runs the task with its output quantised as the weight that reads it needs.
void PackedBackend::quantize(RowTask task, const cpu::PackedWeight& reader,
                             QuantizedBuffer& buffer) {
  task.groups = reader.groups();
  task.scale_groups = precision_.activations.group == 0 ? 1 : task.groups;
  const int64_t stride = cpu::activation_stride(task.width);
  buffer.values.resize(static_cast<size_t>(task.rows * stride));
  buffer.scales.resize(static_cast<size_t>(task.rows * task.scale_groups));
  buffer.sums.resize(static_cast<size_t>(task.rows * task.groups));
  task.values = buffer.values.data();
  task.values_stride = stride;
  task.scales = buffer.scales.data();
  task.sums = buffer.sums.data();
  cpu::rows(*kernels_, task);
  buffer.view = {task.rows,   task.bits,         task.values, stride,
                 task.scales, task.scale_groups, task.sums};
}

void PackedBackend::normalize(int64_t layer, Space site) {
  const PackedLayer& weights = layers_[static_cast<size_t>(layer)];
  const bool attention = site == Space::kAttentionInput;
  RowTask task = row_task(x_.rows(), config_.hidden);
  task.source = RowSource::kRmsNorm;
  task.x = x_.data();
  task.x_stride = x_.cols();
  task.gain = attention ? weights.attention_norm.data() : weights.ffn_norm.data();
  task.eps = static_cast<float>(config_.norm_eps);
  task.hadamard = norm_output_ ? &norm_output_->task : nullptr;
  quantize(task, attention ? weights.qkv : weights.gate_up, input_);
}

void PackedBackend::project_qkv(int64_t layer) {
  const PackedLayer& weights = layers_[static_cast<size_t>(layer)];
  qkv_.resize(x_.rows(), weights.qkv.outputs);
  cpu::gemm(*kernels_, input_.view, weights.qkv, qkv_);
}

int64_t PackedBackend::page_offset(int64_t layer) const {
  return layer * config_.kv_heads * cache_.layout().page_bytes();
}

void PackedBackend::append_cache(int64_t layer) {
  const PackedLayer& weights = layers_[static_cast<size_t>(layer)];
  query_.resize(x_.rows(), config_.width(Space::kQuery));
  HeadsTask task;
  task.tokens = x_.rows();
  task.head_dim = config_.head_dim;
  task.x_stride = qkv_.cols();
  task.eps = static_cast<float>(config_.norm_eps);
  task.rotary = config_.rope.rotary_dim;
  task.cache = places_.data();
  task.layout = &cache_.layout();
  task.page_offset = page_offset(layer);

  HeadsTask values = task;
  values.heads = config_.kv_heads;
  values.x = qkv_.data() + config_.width(Space::kQuery) + config_.width(Space::kKey);
  values.centre = weights.value_center.empty() ? nullptr : weights.value_center.data();
  values.values = true;
  values.clip = precision_.values.clip;
  cpu::heads(*kernels_, values);

  task.cos = cos_.data();
  task.sin = sin_.data();
  task.hadamard = query_key_ ? &query_key_->task : nullptr;
  HeadsTask keys = task;
  keys.heads = config_.kv_heads;
  keys.x = qkv_.data() + config_.width(Space::kQuery);
  keys.gain = weights.key_norm.empty() ? nullptr : weights.key_norm.data();
  keys.centre = weights.key_center.empty() ? nullptr : weights.key_center.data();
  keys.clip = precision_.keys.clip;
  cpu::heads(*kernels_, keys);

  task.heads = config_.heads;
  task.x = qkv_.data();
  task.gain = weights.query_norm.empty() ? nullptr : weights.query_norm.data();
  task.scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
  task.y = query_.data();
  task.y_stride = query_.cols();
  cpu::heads(*kernels_, task);
}

void PackedBackend::attend(int64_t layer) {
  attention_.resize(x_.rows(), config_.width(Space::kAttentionOutput));
  AttentionTask task;
  task.tokens = x_.rows();
  task.heads = config_.heads;
  task.kv_heads = config_.kv_heads;
  task.q = query_.data();
  task.q_stride = query_.cols();
  task.cache = places_.data();
  task.layout = &cache_.layout();
  task.page_offset = page_offset(layer);
  task.window = layers_[static_cast<size_t>(layer)].window;
  task.y = attention_.data();
  task.y_stride = attention_.cols();
  cpu::attention(*kernels_, task);
}

void PackedBackend::mix_heads(int64_t layer) {
  RowTask task = row_task(attention_.rows(), attention_.cols());
  task.x = attention_.data();
  task.x_stride = attention_.cols();
  task.hadamard = heads_ ? &heads_->task : nullptr;
  quantize(task, layers_[static_cast<size_t>(layer)].output, input_);
}

void PackedBackend::project_output(int64_t layer) {
  cpu::gemm(*kernels_, input_.view, layers_[static_cast<size_t>(layer)].output, x_, true);
}

void PackedBackend::project_gate_up(int64_t layer) {
  const PackedLayer& weights = layers_[static_cast<size_t>(layer)];
  gate_up_.resize(x_.rows(), weights.gate_up.outputs);
  cpu::gemm(*kernels_, input_.view, weights.gate_up, gate_up_);
}

void PackedBackend::gate(int64_t layer) {
  RowTask task = row_task(gate_up_.rows(), config_.ffn);
  task.source = RowSource::kSwiGlu;
  task.x = gate_up_.data();
  task.x_stride = gate_up_.cols();
  task.up = gate_up_.data() + config_.ffn;
  task.up_stride = gate_up_.cols();
  task.hadamard = ffn_ ? &ffn_->task : nullptr;
  quantize(task, layers_[static_cast<size_t>(layer)].down, input_);
}

void PackedBackend::project_down(int64_t layer) {
  cpu::gemm(*kernels_, input_.view, layers_[static_cast<size_t>(layer)].down, x_, true);
}

void PackedBackend::logits(int64_t first, int64_t count, MatrixRef out) {
  normed_.resize(count, config_.hidden);
  for (int64_t r = 0; r < count; ++r) {
    rms_norm(x_.row(first + r), final_norm_, static_cast<float>(config_.norm_eps), normed_.row(r));
  }
  matmul_transposed(normed_, lm_head_.empty() ? embedding_ : lm_head_, out);
}

}  // namespace quarot
