#include "runtime/cuda/simulated_cuda_backend.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/plain/plain.h"
#include "runtime/rope_tables.h"

namespace quarot::cuda {

namespace {

int64_t float_bytes(const Model& model) {
  int64_t elements = 0;
  for (const Layer& layer : model.layers) {
    for (const Linear& linear : layer.linears) elements += linear.weight.size();
  }
  return 4 * elements + Vocabulary<float>::bytes(model.config, {});
}

// Whether both put their tokens at the same positions.
bool same_places(const Batch& a, const Batch& b) {
  return std::ranges::equal(a.chunks, b.chunks, [](const auto& x, const auto& y) {
    return x.count == y.count && x.position == y.position && x.known_length() == y.known_length();
  });
}

}  // namespace

Result<std::unique_ptr<SimulatedCudaBackend>> SimulatedCudaBackend::create(
    const Model& model, const Precision& precision) {
  QUAROT_ASSIGN_OR_RETURN(Context context, Context::create());
  Vocabulary<float> vocabulary;
  if (!model.embedding.empty()) {
    QUAROT_RETURN_IF_ERROR(check_memory(float_bytes(model), "the model in float32"));
    QUAROT_ASSIGN_OR_RETURN(vocabulary, Vocabulary<float>::upload(model));
  }
  std::unique_ptr<SimulatedCudaBackend> backend(
      new SimulatedCudaBackend(model.config, precision, std::move(context), std::move(vocabulary)));
  QUAROT_RETURN_IF_ERROR(backend->upload(model));
  return backend;
}

Status SimulatedCudaBackend::upload(const Model& model) {
  QUAROT_ASSIGN_OR_RETURN(norm_output_, FloatRotation::upload(model.online.norm_output));
  QUAROT_ASSIGN_OR_RETURN(heads_, FloatRotation::upload(model.online.heads));
  QUAROT_ASSIGN_OR_RETURN(query_key_, FloatRotation::upload(model.online.query_key));
  QUAROT_ASSIGN_OR_RETURN(ffn_, FloatRotation::upload(model.online.ffn));
  if (query_key_ && query_key_->dense) {
    return error(ErrorCode::kUnsupported, "queries and keys turn by a fast Hadamard only");
  }
  for (const Layer& layer : model.layers) {
    QUAROT_ASSIGN_OR_RETURN(FloatLayer uploaded, FloatLayer::upload(layer));
    layers_.push_back(std::move(uploaded));
  }
  return {};
}

void SimulatedCudaBackend::put_layer(const Layer& layer, int64_t sliding_window) {
  run([&]() -> Status {
    config_.sliding_windows = {sliding_window};
    layers_.clear();  // first, so that both need not fit
    QUAROT_ASSIGN_OR_RETURN(FloatLayer uploaded, FloatLayer::upload(layer));
    layers_.push_back(std::move(uploaded));
    return {};
  });
}

void SimulatedCudaBackend::put_weights(const Layer& layer, Space site) {
  run([&]() -> Status {
    QUAROT_ASSIGN_OR_RETURN(layers_[0].weights[site_index(site)], FloatWeight::upload(layer, site));
    return {};
  });
}

int SimulatedCudaBackend::fork_sequence(int sequence, int64_t tokens) {
  const int fork = cache_.add();
  run([&] { return cache_.copy(sequence, tokens, fork, stream()); });
  return fork;
}

Status SimulatedCudaBackend::reserve(const Batch& batch) {
  QUAROT_RETURN_IF_ERROR(cache_.reserve(batch, stream()));
  const Result<bool> uploaded = batch_.upload(batch, {}, config_.rope, 0, stream());
  if (!uploaded.ok()) return uploaded.error();
  const int64_t heads_width = config_.width(Space::kAttentionOutput);
  const int64_t kv_width = config_.width(Space::kKey);
  const int64_t widest = std::max({config_.hidden, config_.ffn, heads_width});
  const auto dense = [](const auto& rotation) { return rotation && rotation->dense; };
  const bool turns = dense(norm_output_) || dense(heads_) || dense(ffn_);
  const struct {
    DeviceArray<float>& array;
    int64_t width;
  } buffers[] = {{x_, config_.hidden},
                 {input_, widest},
                 {turned_, turns ? widest : 0},
                 {qkv_, config_.width(Space::kQuery) + 2 * kv_width},
                 {query_, heads_width},
                 {key_, kv_width},
                 {value_, kv_width},
                 {attention_, heads_width},
                 {gate_up_, 2 * config_.ffn},
                 {device_cos_, config_.rope.rotary_dim / 2},
                 {device_sin_, config_.rope.rotary_dim / 2}};
  for (const auto& buffer : buffers) {
    const Result<bool> grown = buffer.array.grow(rows() * buffer.width, "a batch");
    if (!grown.ok()) return grown.error();
  }
  return {};
}

Status SimulatedCudaBackend::begin(const Batch& batch) {
  const bool turned_alike = same_places(host_batch_, batch);
  host_batch_ = batch;
  QUAROT_RETURN_IF_ERROR(reserve(batch));
  if (turned_alike) return {};
  fill_rope_tables(config_.rope, batch, cos_, sin_);
  const size_t bytes = static_cast<size_t>(cos_.size()) * sizeof(float);
  for (const auto& [to, from] : {std::pair(&device_cos_, &cos_), {&device_sin_, &sin_}}) {
    QUAROT_RETURN_IF_ERROR(
        check(cudaMemcpy(to->data(), from->data(), bytes, cudaMemcpyHostToDevice), "a batch"));
  }
  return {};
}

void SimulatedCudaBackend::embed(const Batch& batch) {
  run([&]() -> Status {
    QUAROT_RETURN_IF_ERROR(begin(batch));
    return embed_tokens();
  });
}

void SimulatedCudaBackend::resume(const Batch& batch, const float* residual,
                                  const float* attention) {
  run([&]() -> Status {
    QUAROT_RETURN_IF_ERROR(begin(batch));
    QUAROT_RETURN_IF_ERROR(copy_floats(x_.data(), residual, rows() * config_.hidden, stream()));
    return copy_floats(attention_.data(), attention,
                       rows() * config_.width(Space::kAttentionOutput), stream());
  });
}

void SimulatedCudaBackend::leave(float* residual, float* attention) {
  run([&]() -> Status {
    QUAROT_RETURN_IF_ERROR(copy_floats(residual, x_.data(), rows() * config_.hidden, stream()));
    return copy_floats(attention, attention_.data(),
                       rows() * config_.width(Space::kAttentionOutput), stream());
  });
}

Status SimulatedCudaBackend::observe(int64_t layer, Space space, const float* rows, int64_t width) {
  if (observer_ == nullptr) return {};
  Matrix seen(batch_.rows(), width);
  QUAROT_RETURN_IF_ERROR(copy_floats(seen.data(), rows, seen.size(), stream()));
  QUAROT_RETURN_IF_ERROR(context_.wait());
  observer_->observe(layer, space, seen);
  return {};
}

// The task's row, rotated and quantised, is what the next linear reads.
Status SimulatedCudaBackend::finish_site(int64_t layer, Space site, RowTask task,
                                         const FloatRotation* rotation) {
  task.rows = rows();
  task.y = input_.data();
  task.y_stride = task.width;
  const bool apart = rotation != nullptr && (rotation->dense || precision_.half_online);
  if (rotation != nullptr && !apart) task.hadamard = &rotation->task;
  QUAROT_RETURN_IF_ERROR(cuda::rows(task, stream()));
  if (apart) QUAROT_RETURN_IF_ERROR(turn(task, *rotation));
  QUAROT_RETURN_IF_ERROR(quantize(layer, site, task.width));
  return observe(layer, site, input_.data(), task.width);
}

// The rows that the task has written; butterflies, where half precision is asked for, between
// halves.
Status SimulatedCudaBackend::turn(const RowTask& task, const FloatRotation& rotation) {
  const int64_t size = task.rows * task.width;
  const bool in_half = precision_.half_online;
  if (rotation.dense) {
    QUAROT_RETURN_IF_ERROR(context_.multiply(task.y, task.rows, rotation.matrix.data(), task.width,
                                             task.width, turned_.data()));
    QUAROT_RETURN_IF_ERROR(copy_floats(task.y, turned_.data(), size, stream()));
  } else {
    QUAROT_RETURN_IF_ERROR(round_to_half(task.y, size, stream()));
    RowTask again;
    again.rows = task.rows;
    again.width = again.x_stride = again.y_stride = task.width;
    again.x = again.y = task.y;
    again.hadamard = &rotation.task;
    QUAROT_RETURN_IF_ERROR(cuda::rows(again, stream()));
  }
  return in_half ? round_to_half(task.y, size, stream()) : Status();
}

Status SimulatedCudaBackend::quantize(int64_t layer, Space site, int64_t width) {
  const FloatLayer& weights = this->layer(layer);
  const ActivationQuant quant = precision_.activations.with(
      weights.clips[site_index(site)], weights.activation_bits[site_index(site)]);
  if (!quant.enabled()) return {};
  if (precision_.kept.threshold > 0) {
    QUAROT_ASSIGN_OR_RETURN(const DeviceOrder* const order, order_by_threshold(width));
    return quantize_apart(quant, *order, width);
  }
  const DeviceOrder& order = weights.orders[site_index(site)];
  if (order.channels.size() > 0) return quantize_apart(quant, order, width);
  return simulate({quant.bits, group_size(quant, width), quant.clip, quant.symmetric},
                  input_.data(), rows(), width, stream());
}

// The kept channels with bits of their own, a scale a row.
Status SimulatedCudaBackend::quantize_apart(const ActivationQuant& quant, const DeviceOrder& order,
                                            int64_t width) {
  const int64_t rest = width - order.kept;
  Simulation task{quant.bits,      group_size(quant, rest), quant.clip,
                  quant.symmetric, order.channels.data(),   width};
  if (rest > 0) {
    QUAROT_RETURN_IF_ERROR(simulate(task, input_.data(), rows(), rest, stream()));
  }
  task.bits = precision_.kept.bits;
  task.group = order.kept;
  task.channels += rest;
  if (order.kept == 0 || task.bits >= kFloatBits) return {};
  return simulate(task, input_.data(), rows(), order.kept, stream());
}

Result<const DeviceOrder*> SimulatedCudaBackend::order_by_threshold(int64_t width) {
  const Result<bool> grown = largest_.grow(width, "kept channels");
  if (!grown.ok()) return grown.error();
  QUAROT_RETURN_IF_ERROR(
      largest_magnitudes(input_.data(), largest_.data(), rows(), width, stream()));
  std::vector<float> largest(static_cast<size_t>(width));
  QUAROT_RETURN_IF_ERROR(copy_floats(largest.data(), largest_.data(), width, stream()));
  QUAROT_RETURN_IF_ERROR(context_.wait());
  QUAROT_ASSIGN_OR_RETURN(
      order_, DeviceOrder::upload(quarot::order_by_threshold(precision_.kept.threshold, largest)));
  return &order_;
}

// y [rows, …] ← what the linears at the site make of their input; += with accumulate.
void SimulatedCudaBackend::project(int64_t layer, Space site, float* y, bool accumulate) {
  run([&]() -> Status {
    const FloatWeight& weight = this->layer(layer).weights[site_index(site)];
    QUAROT_RETURN_IF_ERROR(context_.multiply(input_.data(), rows(), weight.values.data(),
                                             weight.outputs, weight.inputs, y, accumulate));
    if (weight.bias.size() == 0) return {};
    return add_bias(weight.bias.data(), y, rows(), weight.outputs, stream());
  });
}

void SimulatedCudaBackend::normalize(int64_t layer, Space site) {
  run([&] {
    const FloatLayer& weights = this->layer(layer);
    RowTask task;
    task.source = RowSource::kRmsNorm;
    task.width = task.x_stride = config_.hidden;
    task.x = x_.data();
    task.gain = (site == Space::kAttentionInput ? weights.attention_norm : weights.ffn_norm).data();
    task.eps = static_cast<float>(config_.norm_eps);
    return finish_site(layer, site, task, norm_output_.get());
  });
}

void SimulatedCudaBackend::project_qkv(int64_t layer) {
  project(layer, Space::kAttentionInput, qkv_.data(), false);
}

void SimulatedCudaBackend::mix_heads(int64_t layer) {
  run([&] {
    RowTask task;
    task.width = task.x_stride = config_.width(Space::kAttentionOutput);
    task.x = attention_.data();
    return finish_site(layer, Space::kAttentionOutput, task, heads_.get());
  });
}

void SimulatedCudaBackend::project_output(int64_t layer) {
  project(layer, Space::kAttentionOutput, x_.data(), true);
}

void SimulatedCudaBackend::project_gate_up(int64_t layer) {
  project(layer, Space::kFfnInput, gate_up_.data(), false);
}

void SimulatedCudaBackend::gate(int64_t layer) {
  run([&] {
    RowTask task;
    task.source = RowSource::kSwiGlu;
    task.width = config_.ffn;
    task.x = gate_up_.data();
    task.up = gate_up_.data() + config_.ffn;
    task.x_stride = task.up_stride = 2 * config_.ffn;
    return finish_site(layer, Space::kFfnHidden, task, ffn_.get());
  });
}

void SimulatedCudaBackend::project_down(int64_t layer) {
  project(layer, Space::kFfnHidden, x_.data(), true);
}

}  // namespace quarot::cuda
