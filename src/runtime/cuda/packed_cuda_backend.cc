#include "runtime/cuda/packed_cuda_backend.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/plain/plain.h"

namespace quarot::cuda {

namespace {

int stored_bits_of(const CacheQuant& quant) {
  return stored_bits(quant.enabled() ? quant.bits : 16);
}

PageLayout layout_of(const ModelConfig& config, const Precision& precision) {
  return {static_cast<int>(config.head_dim), stored_bits_of(precision.keys),
          stored_bits_of(precision.values)};
}

// So many floats that what follows them is aligned as an allocation is.
int64_t aligned(int64_t floats) { return (floats + 63) / 64 * 64; }

}  // namespace

PackedCudaBackend::PackedCudaBackend(const ModelConfig& config, const Precision& precision,
                                     Context context, Vocabulary<__half> vocabulary,
                                     PackedModel model)
    : CudaBackend(config, std::move(context), std::move(vocabulary)),
      precision_(precision),
      model_(std::move(model)),
      cache_(layout_of(config, precision), config.layers, config.kv_heads) {}

int64_t PackedCudaBackend::bytes(const ModelConfig& config, TableBits tables) {
  return PackedModel::bytes(config) + Vocabulary<__half>::bytes(config, tables);
}

Status PackedCudaBackend::check(const Model& model, const Precision& precision) {
  return PackedModel::check(model, precision);
}

Result<std::unique_ptr<PackedCudaBackend>> PackedCudaBackend::create(Model model,
                                                                     const Precision& precision,
                                                                     const NextLayer& next_layer) {
  QUAROT_RETURN_IF_ERROR(check(model, precision));
  QUAROT_ASSIGN_OR_RETURN(Context context, Context::create());
  QUAROT_RETURN_IF_ERROR(check_memory(bytes(model.config, model.table_bits()), "the packed model"));
  QUAROT_ASSIGN_OR_RETURN(Vocabulary<__half> vocabulary, Vocabulary<__half>::upload(model));
  QUAROT_ASSIGN_OR_RETURN(PackedModel packed, PackedModel::upload(model, next_layer));
  return std::unique_ptr<PackedCudaBackend>(new PackedCudaBackend(
      model.config, precision, std::move(context), std::move(vocabulary), std::move(packed)));
}

template <typename T>
Status PackedCudaBackend::grow(DeviceArray<T>& array, int64_t count) {
  QUAROT_ASSIGN_OR_RETURN(const bool grown, array.grow(count, "a batch"));
  moved_ = moved_ || grown;
  return {};
}

// Pages for the new tokens, and the batch on the GPU.
Status PackedCudaBackend::reserve_cache(const Batch& batch) {
  int64_t longest = 0;
  for (const SequenceChunk& chunk : batch.chunks) {
    const int64_t length = chunk.position + chunk.count;
    QUAROT_RETURN_IF_ERROR(cache_.reserve(chunk.sequence, chunk.position, length, stream()));
    longest = std::max(longest, length);
  }
  std::vector<const PageList*> pages;
  for (const SequenceChunk& chunk : batch.chunks) pages.push_back(&cache_.pages(chunk.sequence));
  QUAROT_ASSIGN_OR_RETURN(const bool rope_moved, rope_.reserve(config_.rope, longest));
  QUAROT_ASSIGN_OR_RETURN(const bool batch_moved,
                          batch_.upload(batch, pages, config_.rope, rope_.positions(), stream()));
  moved_ = moved_ || rope_moved || batch_moved;
  return {};
}

// What the operations write, a row a token.
Status PackedCudaBackend::reserve_rows() {
  const PackedLayer& layer = model_.layers.front();
  const int64_t count = rows();
  const int64_t inputs = count * std::max({layer.qkv.inputs, layer.output.inputs,
                                           layer.gate_up.inputs, layer.down.inputs});
  const int64_t hidden = count * config_.hidden;
  const int64_t qkv = aligned(count * layer.qkv.outputs);
  const int64_t heads = aligned(count * config_.width(Space::kAttentionOutput));
  const bool gates = gemm_gates(product(layer.gate_up, nullptr));
  const int64_t ffn = count * (gates ? config_.ffn : layer.gate_up.outputs);
  const int64_t floats = std::max(qkv + heads + heads / 2, ffn);
  const int64_t bytes = 4 * (std::max<int64_t>(hidden - x_.size(), 0) +
                             std::max<int64_t>(floats - floats_.size(), 0)) +
                        std::max<int64_t>(inputs - values_.size(), 0);
  if (bytes > 0) QUAROT_RETURN_IF_ERROR(check_memory(bytes, "the buffers of a batch"));
  QUAROT_RETURN_IF_ERROR(grow(x_, hidden));
  QUAROT_RETURN_IF_ERROR(grow(values_, inputs));
  QUAROT_RETURN_IF_ERROR(grow(scales_, count));
  QUAROT_RETURN_IF_ERROR(grow(floats_, floats));
  gate_up_ = qkv_ = floats_.data();
  attention_ = qkv_ + qkv;
  query_ = reinterpret_cast<__half*>(attention_ + heads);
  return {};
}

Status PackedCudaBackend::reserve_workspaces() {
  const PackedLayer& layer = model_.layers.front();
  const int64_t outputs = std::max(
      {layer.qkv.outputs, layer.output.outputs, layer.gate_up.outputs, layer.down.outputs});
  AttentionShape shape;
  shape.sequences = static_cast<int>(batch_.chunks());
  shape.query_heads = static_cast<int>(config_.heads);
  shape.max_length = static_cast<int>(batch_.max_length());
  const size_t decoding = decode_workspace_bytes(shape, cache_of(0, ChunkRun()));
  const std::pair<DeviceArray<uint8_t>*, int64_t> workspaces[] = {
      {&gemm_workspace_, gemm_workspace_bytes(kStreamRows, outputs)},
      {&attention_workspace_, static_cast<int64_t>(decoding)}};
  for (const auto& [workspace, bytes] : workspaces) {
    if (bytes <= workspace->size()) continue;
    QUAROT_RETURN_IF_ERROR(grow(*workspace, bytes));
    QUAROT_RETURN_IF_ERROR(
        cuda::check(cudaMemsetAsync(workspace->data(), 0, static_cast<size_t>(bytes), stream()),
                    "a workspace"));
  }
  return {};
}

std::optional<StepLayer> PackedCudaBackend::step_layer(int64_t layer) {
  const PackedLayer& weights = model_.layers[static_cast<size_t>(layer)];
  const auto product = [](const PackedWeight& w) {
    return StepProduct{w.outputs, w.inputs, w.values.data(), w.scales.data(), w.bias.data()};
  };
  const Rotation* norm = model_.norm_output.get();
  const auto attention_norm =
      fused_rows(norm_task(layer, Space::kAttentionInput), weights.qkv, norm);
  const auto heads = fused_rows(heads_task(), weights.output, model_.heads.get());
  const auto ffn_norm = fused_rows(norm_task(layer, Space::kFfnInput), weights.gate_up, norm);
  const auto ffn = fused_rows(gate_task(true), weights.down, model_.ffn.get());
  if (!attention_norm || !heads || !ffn_norm || !ffn) return std::nullopt;
  return StepLayer{product(weights.qkv),
                   product(weights.output),
                   product(weights.gate_up),
                   product(weights.down),
                   *attention_norm,
                   *heads,
                   *ffn_norm,
                   *ffn,
                   heads_of(layer),
                   rotary(),
                   model_.query_key,
                   writer_of(layer),
                   cache_of(layer, ChunkRun()),
                   attention_shape(layer)};
}

// step_, where the kernel takes this model on this device.
Status PackedCudaBackend::plan_steps() {
  if (step_length_ == batch_.max_length()) return {};
  step_.reset();
  step_length_ = batch_.max_length();
  std::vector<StepLayer> layers;
  for (int64_t i = 0; i < config_.layers; ++i) {
    const std::optional<StepLayer> layer = step_layer(i);
    if (!layer) return {};
    layers.push_back(*layer);
  }
  QUAROT_RETURN_IF_ERROR(grow(step_workspace_, step_workspace_bytes(layers.front())));
  Result<StepPlan> plan = plan_step(layers, step_workspace_.data());
  if (!plan.ok()) {
    return plan.error().code() == ErrorCode::kUnsupported ? Status() : Status(plan.error());
  }
  QUAROT_RETURN_IF_ERROR(context_.wait());  // the last step may still read the old image
  QUAROT_ASSIGN_OR_RETURN(step_image_, DeviceArray<uint8_t>::upload(plan->image, "decoding"));
  plan->args.layers = step_image_.data();
  plan->args.x = x_.data();
  step_ = *std::move(plan);
  return {};
}

Status PackedCudaBackend::begin(const Batch& batch) {
  replayed_ = false;
  moved_ = false;
  QUAROT_RETURN_IF_ERROR(reserve_cache(batch));
  QUAROT_RETURN_IF_ERROR(reserve_rows());
  QUAROT_RETURN_IF_ERROR(reserve_workspaces());
  if (moved_) {
    graphs_.clear();
    step_length_ = 0;
  }
  if (rows() == 1) {
    QUAROT_RETURN_IF_ERROR(plan_steps());
    if (batch_.longest() <= step_tokens()) {
      QUAROT_RETURN_IF_ERROR(embed_tokens());
      replayed_ = true;
      return run_step(*step_, stream());
    }
  }
  if (batch_.decodes()) {
    QUAROT_ASSIGN_OR_RETURN(replayed_, graphs_.replay({rows(), batch_.max_length()}, stream()));
  }
  return replayed_ ? Status() : embed_tokens();
}

void PackedCudaBackend::embed(const Batch& batch) {
  run([&] { return begin(batch); });
}

std::optional<Rows> PackedCudaBackend::fused_rows(const RowTask& task, const PackedWeight& reader,
                                                  const Rotation* rotation) const {
  if (task.width % kInputMultiple != 0 || (rotation != nullptr && !rotation->fused)) return {};
  Rows rows;
  rows.element = Element::kFloat32;
  rows.rows = static_cast<int>(this->rows());
  rows.n = static_cast<int>(task.width);
  rows.operation = task.source == RowSource::kRmsNorm  ? RowOperation::kNorm
                   : task.source == RowSource::kSwiGlu ? RowOperation::kSwiglu
                                                       : RowOperation::kPlain;
  rows.x = task.x;
  rows.second = task.up;
  rows.stride = task.x_stride;
  rows.gain = task.gain;
  rows.eps = task.eps;
  if (rotation != nullptr) rows.rotation = *rotation->fused;
  const ActivationQuant quant = precision_.activations.with(reader.clip, reader.bits);
  rows.quant.bits = quant.bits;
  rows.quant.clip = quant.clip;
  return rows;
}

Status PackedCudaBackend::quantize(RowTask task, const PackedWeight& reader,
                                   const Rotation* rotation) {
  values_type_ = GemmActivations::kInt8;
  rows_.reset();
  task.rows = rows();
  const ActivationQuant quant = precision_.activations.with(reader.clip, reader.bits);
  task.bits = quant.bits;
  std::optional<Rows> fused = fused_rows(task, reader, rotation);
  if (!fused) {
    task.clip = quant.clip;
    task.values = values_.data();
    task.values_stride = reader.inputs;
    task.scales = scales_.data();
    task.hadamard = rotation != nullptr ? &rotation->plain : nullptr;
    return cuda::rows(task, stream());
  }
  if (task.bits <= 4) {
    QUAROT_ASSIGN_OR_RETURN(values_type_, gemm_activations(task.rows, task.width));
  }
  fused->quant.pack_int4 = values_type_ == GemmActivations::kInt4;
  fused->quant.values = values_.data();
  fused->quant.scales = scales_.data();
  if (!gemm_quantizes(*fused)) return quantize_rows(*fused, stream());
  rows_ = fused;
  return {};
}

Gemm PackedCudaBackend::product(const PackedWeight& weight, float* y) const {
  Gemm product;
  product.m = rows();
  product.n = weight.outputs;
  product.k = weight.inputs;
  product.activations_type = values_type_;
  product.activations = values_.data();
  product.activation_scales = scales_.data();
  product.rows = rows_ ? &*rows_ : nullptr;
  product.weight = weight.values.data();
  product.weight_scales = weight.scales.data();
  product.bias = weight.bias.data();
  product.output = y;
  return product;
}

Status PackedCudaBackend::multiply(const PackedWeight& weight, float* y, bool accumulate) {
  Gemm product = this->product(weight, y);
  product.residual = accumulate ? y : nullptr;
  product.workspace = gemm_workspace_.data();
  return gemm(product, stream());
}

PagedCache PackedCudaBackend::cache_of(int64_t layer, const ChunkRun& run) {
  return {cache_.layout(),
          cache_.layer(layer),
          batch_.page_table(run.first),
          static_cast<int>(batch_.table_stride()),
          batch_.lengths(run.first),
          static_cast<int>(config_.kv_heads)};
}

RowTask PackedCudaBackend::norm_task(int64_t layer, Space site) {
  const PackedLayer& weights = model_.layers[static_cast<size_t>(layer)];
  RowTask task;
  task.source = RowSource::kRmsNorm;
  task.width = task.x_stride = config_.hidden;
  task.x = x_.data();
  task.gain =
      site == Space::kAttentionInput ? weights.attention_norm.data() : weights.ffn_norm.data();
  task.eps = static_cast<float>(config_.norm_eps);
  return task;
}

void PackedCudaBackend::normalize(int64_t layer, Space site) {
  enqueue([&] {
    const PackedLayer& weights = model_.layers[static_cast<size_t>(layer)];
    return quantize(norm_task(layer, site),
                    site == Space::kAttentionInput ? weights.qkv : weights.gate_up,
                    model_.norm_output.get());
  });
}

void PackedCudaBackend::project_qkv(int64_t layer) {
  enqueue([&] { return multiply(model_.layers[static_cast<size_t>(layer)].qkv, qkv_, false); });
}

HeadBatch PackedCudaBackend::heads_of(int64_t layer) const {
  const PackedLayer& weights = model_.layers[static_cast<size_t>(layer)];
  HeadBatch heads;
  heads.element = Element::kFloat32;
  heads.tokens = static_cast<int>(rows());
  heads.query_heads = static_cast<int>(config_.heads);
  heads.kv_heads = static_cast<int>(config_.kv_heads);
  heads.q = qkv_;
  heads.k = qkv_ + config_.width(Space::kQuery);
  heads.v = qkv_ + config_.width(Space::kQuery) + config_.width(Space::kKey);
  heads.q_stride = heads.k_stride = heads.v_stride = weights.qkv.outputs;
  heads.sequences = batch_.chunk_of_row();
  heads.positions = batch_.positions();
  heads.q_gain = weights.query_norm.data();
  heads.k_gain = weights.key_norm.data();
  heads.eps = static_cast<float>(config_.norm_eps);
  return heads;
}

Rotary PackedCudaBackend::rotary() const {
  Rotary rotary;
  rotary.table = rope_.data();
  rotary.rows = batch_.rope_rows();
  rotary.dims = static_cast<int>(config_.rope.rotary_dim);
  return rotary;
}

CacheWriter PackedCudaBackend::writer_of(int64_t layer) {
  const PackedLayer& weights = model_.layers[static_cast<size_t>(layer)];
  CacheWriter writer;
  writer.layout = cache_.layout();
  writer.key_bits = precision_.keys.bits;
  writer.value_bits = precision_.values.bits;
  writer.key_clip = precision_.keys.clip;
  writer.value_clip = precision_.values.clip;
  writer.key_center = weights.key_center.data();
  writer.value_center = weights.value_center.data();
  writer.pool = cache_.layer(layer);
  writer.page_table = batch_.page_table(0);
  writer.table_stride = static_cast<int>(batch_.table_stride());
  return writer;
}

void PackedCudaBackend::append_cache(int64_t layer) {
  if (appends_late()) return;
  enqueue([&] {
    return rotate_and_append(heads_of(layer), rotary(), model_.query_key, writer_of(layer), query_,
                             stream());
  });
}

AttentionShape PackedCudaBackend::attention_shape(int64_t layer) const {
  AttentionShape shape;
  shape.sequences = static_cast<int>(batch_.chunks());
  shape.query_heads = static_cast<int>(config_.heads);
  shape.max_length = static_cast<int>(batch_.max_length());
  shape.window = static_cast<int>(config_.sliding_windows[static_cast<size_t>(layer)]);
  shape.scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
  return shape;
}

void PackedCudaBackend::attend(int64_t layer) {
  enqueue([&]() -> Status {
    AttentionShape shape = attention_shape(layer);
    for (const ChunkRun& part : batch_.runs()) {
      shape.sequences = static_cast<int>(part.count);
      const PagedCache cache = cache_of(layer, part);
      const int64_t at = part.first_row * config_.width(Space::kAttentionOutput);
      if (appends_late()) {
        QUAROT_RETURN_IF_ERROR(
            append_and_decode(heads_of(layer), rotary(), model_.query_key, writer_of(layer), cache,
                              shape, attention_workspace_.data(), attention_, stream()));
        continue;
      }
      QUAROT_RETURN_IF_ERROR(
          part.decodes()
              ? attention_decode(query_ + at, cache, shape, attention_workspace_.data(),
                                 attention_ + at, stream())
              : attention_prefill(query_, batch_.starts(part.first), static_cast<int>(part.longest),
                                  cache, shape, attention_, stream()));
    }
    return {};
  });
}

RowTask PackedCudaBackend::heads_task() {
  RowTask task;
  task.width = task.x_stride = config_.width(Space::kAttentionOutput);
  task.x = attention_;
  return task;
}

void PackedCudaBackend::mix_heads(int64_t layer) {
  enqueue([&] {
    return quantize(heads_task(), model_.layers[static_cast<size_t>(layer)].output,
                    model_.heads.get());
  });
}

void PackedCudaBackend::project_output(int64_t layer) {
  enqueue(
      [&] { return multiply(model_.layers[static_cast<size_t>(layer)].output, x_.data(), true); });
}

void PackedCudaBackend::project_gate_up(int64_t layer) {
  enqueue([&] {
    const PackedWeight& weight = model_.layers[static_cast<size_t>(layer)].gate_up;
    Gemm gating = product(weight, gate_up_);
    gating.gated = gated_ = gemm_gates(gating);
    return gated_ ? gemm(gating, stream()) : multiply(weight, gate_up_, false);
  });
}

RowTask PackedCudaBackend::gate_task(bool gated) {
  RowTask task;
  task.width = task.x_stride = config_.ffn;
  task.x = gate_up_;
  if (!gated) {
    task.source = RowSource::kSwiGlu;
    task.up = gate_up_ + config_.ffn;
    task.x_stride = task.up_stride = 2 * config_.ffn;
  }
  return task;
}

void PackedCudaBackend::gate(int64_t layer) {
  enqueue([&] {
    return quantize(gate_task(gated_), model_.layers[static_cast<size_t>(layer)].down,
                    model_.ffn.get());
  });
}

void PackedCudaBackend::project_down(int64_t layer) {
  enqueue(
      [&] { return multiply(model_.layers[static_cast<size_t>(layer)].down, x_.data(), true); });
  if (!graphs_.recording() || layer + 1 < config_.layers) return;
  const Status finished = graphs_.finish(stream());  // also after an error
  run([&] { return finished; });
}

}  // namespace quarot::cuda
