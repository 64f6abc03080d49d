#include "runtime/cuda/simulated_cuda_backend.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/plain/plain.h"
#include "runtime/rope_tables.h"

namespace quarot::cuda {

namespace {

constexpr int64_t kScores = 1 << 26;  // held at a time

int64_t float_bytes(const Model& model) {
  int64_t elements = 0;
  for (const Layer& layer : model.layers) {
    for (const Linear& linear : layer.linears) elements += linear.weight.size();
  }
  return 4 * elements + Vocabulary<float>::bytes(model.config);
}

Result<DeviceArray<float>> upload_floats(const std::vector<float>& host) {
  return DeviceArray<float>::upload(host, "a layer");
}

}  // namespace

Result<std::unique_ptr<SimulatedCudaBackend>> SimulatedCudaBackend::create(
    const Model& model, const Precision& precision) {
  QUAROT_ASSIGN_OR_RETURN(Context context, Context::create());
  QUAROT_RETURN_IF_ERROR(check_memory(float_bytes(model), "the model in float32"));
  QUAROT_ASSIGN_OR_RETURN(Vocabulary<float> vocabulary, Vocabulary<float>::upload(model));
  std::unique_ptr<SimulatedCudaBackend> backend(
      new SimulatedCudaBackend(model.config, precision, std::move(context), std::move(vocabulary)));
  QUAROT_RETURN_IF_ERROR(backend->upload(model));
  return backend;
}

Result<SimulatedCudaBackend::Weight> SimulatedCudaBackend::upload_together(
    const Layer& layer, std::initializer_list<Role> roles) {
  Weight weight;
  weight.inputs = layer[*roles.begin()].weight.cols();
  std::vector<float> values;
  std::vector<float> bias;
  bool any_bias = false;
  for (const Role role : roles) {
    const Linear& linear = layer[role];
    const std::span<const float> elements = linear.weight.elements();
    values.insert(values.end(), elements.begin(), elements.end());
    weight.outputs += linear.weight.rows();
    any_bias = any_bias || !linear.bias.empty();
    bias.insert(bias.end(), linear.bias.begin(), linear.bias.end());
    bias.resize(static_cast<size_t>(weight.outputs), 0.0F);
  }
  if (!any_bias) bias.clear();
  QUAROT_ASSIGN_OR_RETURN(weight.values, upload_floats(values));
  QUAROT_ASSIGN_OR_RETURN(weight.bias, upload_floats(bias));
  return weight;
}

Result<std::unique_ptr<SimulatedCudaBackend::Rotation>> SimulatedCudaBackend::rotation_of(
    const std::optional<Orthogonal>& transform) {
  if (!transform || transform->is_identity()) return std::unique_ptr<Rotation>();
  auto rotation = std::make_unique<Rotation>();
  const std::optional<Orthogonal::Fast> fast = transform->fast();
  rotation->dense = !fast || !fast->signs.empty();
  std::vector<float> matrix;
  if (rotation->dense) {
    const BasicMatrix<double> all = transform->matrix();
    matrix.assign(all.elements().begin(), all.elements().end());
  } else {
    matrix.assign(fast->plan->factor.begin(), fast->plan->factor.end());
  }
  QUAROT_ASSIGN_OR_RETURN(rotation->matrix, upload_floats(matrix));
  if (!rotation->dense) {
    const HadamardPlan& plan = *fast->plan;
    rotation->task = {plan.m, plan.log2, fast->inner, rotation->matrix.data(),
                      static_cast<float>(1 / std::sqrt(std::ldexp(1.0, plan.log2)))};
  }
  return rotation;
}

Status SimulatedCudaBackend::upload(const Model& model) {
  QUAROT_ASSIGN_OR_RETURN(norm_output_, rotation_of(model.online.norm_output));
  QUAROT_ASSIGN_OR_RETURN(heads_, rotation_of(model.online.heads));
  QUAROT_ASSIGN_OR_RETURN(query_key_, rotation_of(model.online.query_key));
  QUAROT_ASSIGN_OR_RETURN(ffn_, rotation_of(model.online.ffn));
  if (query_key_ && query_key_->dense) {
    return error(ErrorCode::kUnsupported, "queries and keys turn by a fast Hadamard only");
  }
  for (const Layer& layer : model.layers) {
    LayerWeights& weights = layers_.emplace_back();
    QUAROT_ASSIGN_OR_RETURN(weights.qkv,
                            upload_together(layer, {Role::kQuery, Role::kKey, Role::kValue}));
    QUAROT_ASSIGN_OR_RETURN(weights.output, upload_together(layer, {Role::kOutput}));
    QUAROT_ASSIGN_OR_RETURN(weights.gate_up, upload_together(layer, {Role::kGate, Role::kUp}));
    QUAROT_ASSIGN_OR_RETURN(weights.down, upload_together(layer, {Role::kDown}));
    QUAROT_ASSIGN_OR_RETURN(weights.attention_norm, upload_floats(layer.attention_norm));
    QUAROT_ASSIGN_OR_RETURN(weights.ffn_norm, upload_floats(layer.ffn_norm));
    QUAROT_ASSIGN_OR_RETURN(weights.query_norm, upload_floats(layer.query_norm));
    QUAROT_ASSIGN_OR_RETURN(weights.key_norm, upload_floats(layer.key_norm));
    QUAROT_ASSIGN_OR_RETURN(weights.key_center, upload_floats(layer.key_center));
    QUAROT_ASSIGN_OR_RETURN(weights.value_center, upload_floats(layer.value_center));
  }
  return {};
}

int SimulatedCudaBackend::add_sequence() {
  auto slot = std::ranges::find(sequences_, false, &Sequence::used);
  if (slot == sequences_.end()) slot = sequences_.insert(slot, Sequence());
  slot->used = true;
  return static_cast<int>(slot - sequences_.begin());
}

int SimulatedCudaBackend::fork_sequence(int sequence, int64_t tokens) {
  const int fork = add_sequence();
  run([&]() -> Status {
    Sequence& copied = sequences_[static_cast<size_t>(fork)];
    QUAROT_RETURN_IF_ERROR(grow(copied, tokens));
    return copy(sequences_[static_cast<size_t>(sequence)], copied);
  });
  return fork;
}

void SimulatedCudaBackend::drop_sequence(int sequence) {
  sequences_[static_cast<size_t>(sequence)].used = false;
}

int64_t SimulatedCudaBackend::cache_bytes() const {
  int64_t bytes = 0;
  for (const Sequence& sequence : sequences_) bytes += sequence.memory.bytes();
  return bytes;
}

Status SimulatedCudaBackend::grow(Sequence& sequence, int64_t tokens) {
  if (tokens <= sequence.capacity) return {};
  Sequence grown{true, std::max(tokens, 2 * sequence.capacity), {}};
  QUAROT_ASSIGN_OR_RETURN(
      grown.memory,
      DeviceArray<float>::make(2 * config_.layers * grown.capacity * config_.width(Space::kKey),
                               "KV cache in float32"));
  QUAROT_RETURN_IF_ERROR(copy(sequence, grown));
  QUAROT_RETURN_IF_ERROR(context_.wait());
  sequence = std::move(grown);
  return {};
}

// All tokens that both have room for.
Status SimulatedCudaBackend::copy(const Sequence& from, Sequence& to) {
  const int64_t tokens = std::min(from.capacity, to.capacity);
  if (tokens == 0) return {};
  const auto bytes = [&](int64_t rows) {
    return static_cast<size_t>(rows * config_.width(Space::kKey)) * sizeof(float);
  };
  return check(cudaMemcpy2DAsync(to.memory.data(), bytes(to.capacity), from.memory.data(),
                                 bytes(from.capacity), bytes(tokens),
                                 static_cast<size_t>(2 * config_.layers), cudaMemcpyDeviceToDevice,
                                 stream()),
               "KV cache");
}

// Where the chunk's sequence has its keys or values of a layer, from position 0 on.
float* SimulatedCudaBackend::cached(const SequenceChunk& chunk, int64_t layer, bool values) {
  Sequence& sequence = sequences_[static_cast<size_t>(chunk.sequence)];
  return sequence.memory.data() +
         (2 * layer + (values ? 1 : 0)) * sequence.capacity * config_.width(Space::kKey);
}

Status SimulatedCudaBackend::reserve(const Batch& batch) {
  for (const SequenceChunk& chunk : batch.chunks) {
    QUAROT_RETURN_IF_ERROR(
        grow(sequences_[static_cast<size_t>(chunk.sequence)], chunk.position + chunk.count));
  }
  const Result<bool> uploaded = batch_.upload(batch, {}, config_.rope, 0, stream());
  if (!uploaded.ok()) return uploaded.error();
  const int64_t heads_width = config_.width(Space::kAttentionOutput);
  const int64_t widest = std::max({config_.hidden, config_.ffn, heads_width});
  const LayerWeights& any = layers_.front();
  const bool dense = norm_output_ && norm_output_->dense;
  const struct {
    DeviceArray<float>& array;
    int64_t width;
  } buffers[] = {{x_, config_.hidden},
                 {input_, widest},
                 {turned_, dense ? config_.hidden : 0},
                 {qkv_, any.qkv.outputs},
                 {query_, heads_width},
                 {key_, config_.width(Space::kKey)},
                 {value_, config_.width(Space::kKey)},
                 {attention_, heads_width},
                 {gate_up_, any.gate_up.outputs},
                 {device_cos_, cos_.cols()},
                 {device_sin_, sin_.cols()}};
  for (const auto& buffer : buffers) {
    const Result<bool> grown = buffer.array.grow(rows() * buffer.width, "a batch");
    if (!grown.ok()) return grown.error();
  }
  return {};
}

void SimulatedCudaBackend::embed(const Batch& batch) {
  run([&]() -> Status {
    host_batch_ = batch;
    fill_rope_tables(config_.rope, batch, cos_, sin_);
    QUAROT_RETURN_IF_ERROR(reserve(batch));
    const size_t bytes = static_cast<size_t>(cos_.size()) * sizeof(float);
    for (const auto& [to, from] : {std::pair(&device_cos_, &cos_), {&device_sin_, &sin_}}) {
      QUAROT_RETURN_IF_ERROR(
          check(cudaMemcpy(to->data(), from->data(), bytes, cudaMemcpyHostToDevice), "a batch"));
    }
    return embed_tokens();
  });
}

// The task's row, rotated and quantised, is what the next linear reads.
Status SimulatedCudaBackend::finish_site(RowTask task, const Rotation* rotation) {
  task.rows = rows();
  task.y = input_.data();
  task.y_stride = task.width;
  const bool dense = rotation != nullptr && rotation->dense;
  if (rotation != nullptr && !dense) task.hadamard = &rotation->task;
  QUAROT_RETURN_IF_ERROR(cuda::rows(task, stream()));
  if (dense) {
    QUAROT_RETURN_IF_ERROR(context_.multiply(input_.data(), task.rows, rotation->matrix.data(),
                                             task.width, task.width, turned_.data()));
    const auto bytes = static_cast<size_t>(task.rows * task.width) * sizeof(float);
    QUAROT_RETURN_IF_ERROR(check(
        cudaMemcpyAsync(input_.data(), turned_.data(), bytes, cudaMemcpyDeviceToDevice, stream()),
        "a rotation"));
  }
  const ActivationQuant& quant = precision_.activations;
  if (!quant.enabled()) return {};
  return simulate({quant.bits, group_size(quant, task.width), quant.clip, quant.symmetric},
                  input_.data(), task.rows, task.width, stream());
}

Status SimulatedCudaBackend::multiply(const Weight& weight, float* y, bool accumulate) {
  QUAROT_RETURN_IF_ERROR(context_.multiply(input_.data(), rows(), weight.values.data(),
                                           weight.outputs, weight.inputs, y, accumulate));
  if (weight.bias.size() == 0) return {};
  return add_bias(weight.bias.data(), y, rows(), weight.outputs, stream());
}

void SimulatedCudaBackend::normalize(int64_t layer, Space site) {
  run([&] {
    const LayerWeights& weights = layers_[static_cast<size_t>(layer)];
    RowTask task;
    task.source = RowSource::kRmsNorm;
    task.width = task.x_stride = config_.hidden;
    task.x = x_.data();
    task.gain = (site == Space::kAttentionInput ? weights.attention_norm : weights.ffn_norm).data();
    task.eps = static_cast<float>(config_.norm_eps);
    return finish_site(task, norm_output_.get());
  });
}

void SimulatedCudaBackend::project_qkv(int64_t layer) {
  run([&] { return multiply(layers_[static_cast<size_t>(layer)].qkv, qkv_.data(), false); });
}

void SimulatedCudaBackend::append_cache(int64_t layer) {
  run([&]() -> Status {
    const LayerWeights& weights = layers_[static_cast<size_t>(layer)];
    const int64_t kv_width = config_.width(Space::kKey);
    HeadsTask task;
    task.tokens = rows();
    task.head_dim = config_.head_dim;
    task.x_stride = weights.qkv.outputs;
    task.eps = static_cast<float>(config_.norm_eps);
    HeadsTask values = task;
    values.heads = config_.kv_heads;
    values.x = qkv_.data() + config_.width(Space::kQuery) + kv_width;
    values.centre = weights.value_center.data();
    values.y = value_.data();
    values.y_stride = kv_width;
    task.cos = device_cos_.data();
    task.sin = device_sin_.data();
    task.rotary = config_.rope.rotary_dim;
    task.hadamard = query_key_ ? &query_key_->task : nullptr;
    HeadsTask keys = task;
    keys.heads = config_.kv_heads;
    keys.x = qkv_.data() + config_.width(Space::kQuery);
    keys.gain = weights.key_norm.data();
    keys.centre = weights.key_center.data();
    keys.y = key_.data();
    keys.y_stride = kv_width;
    task.heads = config_.heads;
    task.x = qkv_.data();
    task.gain = weights.query_norm.data();
    task.y = query_.data();
    task.y_stride = config_.width(Space::kQuery);
    for (const HeadsTask& part : {values, keys, task}) {
      QUAROT_RETURN_IF_ERROR(heads(part, stream()));
    }
    for (const bool is_value : {false, true}) {
      const CacheQuant& quant = is_value ? precision_.values : precision_.keys;
      float* x = is_value ? value_.data() : key_.data();
      if (quant.enabled()) {
        QUAROT_RETURN_IF_ERROR(
            simulate({quant.bits, group_size(quant, config_.head_dim), quant.clip, false}, x,
                     rows() * config_.kv_heads, config_.head_dim, stream()));
      }
      for (const SequenceChunk& chunk : host_batch_.chunks) {
        const auto bytes = static_cast<size_t>(chunk.count * kv_width) * sizeof(float);
        QUAROT_RETURN_IF_ERROR(
            check(cudaMemcpyAsync(cached(chunk, layer, is_value) + chunk.position * kv_width,
                                  x + chunk.first_row * kv_width, bytes, cudaMemcpyDeviceToDevice,
                                  stream()),
                  "KV cache"));
      }
    }
    return {};
  });
}

void SimulatedCudaBackend::attend(int64_t layer) {
  run([&]() -> Status {
    for (const SequenceChunk& chunk : host_batch_.chunks) {
      const int64_t row_scores = config_.heads * (chunk.position + chunk.count);
      const int64_t block = std::clamp<int64_t>(kScores / row_scores, 1, chunk.count);
      const Result<bool> grown = scores_.grow(block * row_scores, "scores of attention");
      if (!grown.ok()) return grown.error();
      for (int64_t first = 0; first < chunk.count; first += block) {
        QUAROT_RETURN_IF_ERROR(
            attend_block(chunk, layer, first, std::min(block, chunk.count - first)));
      }
    }
    return {};
  });
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
  const float* keys = cached(chunk, layer, false) + task.first_key * kv_width;
  const float* values = cached(chunk, layer, true) + task.first_key * kv_width;
  const int64_t at = (chunk.first_row + first) * width;
  const auto n = [](int64_t x) { return static_cast<int>(x); };
  const float one = 1;
  const float zero = 0;
  for (int64_t g = 0; g < config_.group(); ++g) {
    QUAROT_RETURN_IF_ERROR(check(
        cublasSgemmStridedBatched(context_.blas(), CUBLAS_OP_T, CUBLAS_OP_N, n(task.keys), n(count),
                                  n(dim), &one, keys, n(kv_width), dim,
                                  query_.data() + at + g * dim, n(width), config_.group() * dim,
                                  &zero, task.scores + g * count * task.keys, n(task.keys),
                                  config_.group() * count * task.keys, n(config_.kv_heads)),
        "attention"));
  }
  QUAROT_RETURN_IF_ERROR(softmax(task, stream()));
  for (int64_t g = 0; g < config_.group(); ++g) {
    QUAROT_RETURN_IF_ERROR(
        check(cublasSgemmStridedBatched(
                  context_.blas(), CUBLAS_OP_N, CUBLAS_OP_N, n(dim), n(count), n(task.keys), &one,
                  values, n(kv_width), dim, task.scores + g * count * task.keys, n(task.keys),
                  config_.group() * count * task.keys, &zero, attention_.data() + at + g * dim,
                  n(width), config_.group() * dim, n(config_.kv_heads)),
              "attention"));
  }
  return {};
}

void SimulatedCudaBackend::mix_heads(int64_t /*layer*/) {
  run([&] {
    RowTask task;
    task.width = task.x_stride = config_.width(Space::kAttentionOutput);
    task.x = attention_.data();
    return finish_site(task, heads_.get());
  });
}

void SimulatedCudaBackend::project_output(int64_t layer) {
  run([&] { return multiply(layers_[static_cast<size_t>(layer)].output, x_.data(), true); });
}

void SimulatedCudaBackend::project_gate_up(int64_t layer) {
  run([&] {
    return multiply(layers_[static_cast<size_t>(layer)].gate_up, gate_up_.data(), false);
  });
}

void SimulatedCudaBackend::gate(int64_t /*layer*/) {
  run([&] {
    RowTask task;
    task.source = RowSource::kSwiGlu;
    task.width = config_.ffn;
    task.x = gate_up_.data();
    task.up = gate_up_.data() + config_.ffn;
    task.x_stride = task.up_stride = 2 * config_.ffn;
    return finish_site(task, ffn_.get());
  });
}

void SimulatedCudaBackend::project_down(int64_t layer) {
  run([&] { return multiply(layers_[static_cast<size_t>(layer)].down, x_.data(), true); });
}

}  // namespace quarot::cuda
