#include "runtime/cuda/float_cache.h"

#include <algorithm>

#include "kernels/cache_task.h"
#include "kernels/cuda/plain/page.h"

namespace quarot::cuda {

int FloatCache::add() {
  auto slot = std::ranges::find(sequences_, false, &Sequence::used);
  if (slot == sequences_.end()) slot = sequences_.insert(slot, Sequence());
  slot->used = true;
  return static_cast<int>(slot - sequences_.begin());
}

Status FloatCache::copy(int from, int64_t tokens, int to, cudaStream_t stream) {
  Sequence& copied = sequences_[static_cast<size_t>(to)];
  QUAROT_RETURN_IF_ERROR(grow(copied, tokens, stream));
  return copy(sequences_[static_cast<size_t>(from)], copied, stream);
}

void FloatCache::drop(int sequence) { sequences_[static_cast<size_t>(sequence)].used = false; }

int64_t FloatCache::bytes() const {
  int64_t bytes = 0;
  for (const Sequence& sequence : sequences_) bytes += sequence.memory.bytes();
  return bytes;
}

Status FloatCache::reserve(const Batch& batch, cudaStream_t stream) {
  int64_t longest = 0;
  for (const SequenceChunk& chunk : batch.chunks) {
    const int64_t end = chunk.position + chunk.count;
    QUAROT_RETURN_IF_ERROR(grow(sequences_[static_cast<size_t>(chunk.sequence)], end, stream));
    longest = std::max(longest, end);
  }
  if (!precision_.pages.keys_before_rope) return {};
  const Result<bool> grown = rope_.reserve(config_.rope, longest);
  return grown.ok() ? Status() : grown.error();
}

Status FloatCache::grow(Sequence& sequence, int64_t tokens, cudaStream_t stream) {
  if (tokens <= sequence.capacity) return {};
  Sequence grown{true, std::max(tokens, 2 * sequence.capacity), {}};
  QUAROT_ASSIGN_OR_RETURN(
      grown.memory,
      DeviceArray<float>::make(2 * config_.layers * grown.capacity * config_.width(Space::kKey),
                               "KV cache in float32"));
  QUAROT_RETURN_IF_ERROR(copy(sequence, grown, stream));
  QUAROT_RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "KV cache"));
  sequence = std::move(grown);
  return {};
}

// All tokens that both have room for.
Status FloatCache::copy(const Sequence& from, Sequence& to, cudaStream_t stream) const {
  const int64_t tokens = std::min(from.capacity, to.capacity);
  if (tokens == 0) return {};
  const auto bytes = [&](int64_t rows) {
    return static_cast<size_t>(rows * config_.width(Space::kKey)) * sizeof(float);
  };
  return check(
      cudaMemcpy2DAsync(to.memory.data(), bytes(to.capacity), from.memory.data(),
                        bytes(from.capacity), bytes(tokens),
                        static_cast<size_t>(2 * config_.layers), cudaMemcpyDeviceToDevice, stream),
      "KV cache");
}

float* FloatCache::at(int sequence, int64_t layer, bool values) {
  Sequence& held = sequences_[static_cast<size_t>(sequence)];
  return held.memory.data() +
         (2 * layer + (values ? 1 : 0)) * held.capacity * config_.width(Space::kKey);
}

Status FloatCache::quantize_page(const SequenceChunk& chunk, int64_t layer, int64_t page,
                                 cudaStream_t stream) {
  const PageQuant& pages = precision_.pages;
  const int64_t first = page * quarot::kPageTokens;
  for (const bool is_value : {false, true}) {
    const CacheQuant& quant = is_value ? precision_.values : precision_.keys;
    if (!quant.enabled()) continue;
    PageTask task;
    task.stride = config_.width(Space::kKey);
    task.x = at(chunk.sequence, layer, is_value) + first * task.stride;
    task.heads = config_.kv_heads;
    task.head_dim = config_.head_dim;
    task.bits = quant.bits;
    task.clip = quant.clip;
    task.group = group_size(quant, config_.head_dim);
    task.outliers = pages.outliers;
    task.by_channel = !is_value && pages.keys_by_channel;
    if (!is_value && pages.keys_before_rope) {
      const RopeConfig& rope = config_.rope;
      const bool is_long = &rope.frequencies(chunk.known_length()) != &rope.inverse_frequency;
      task.rotary = rope.rotary_dim;
      task.rope = rope_.data() + (first + (is_long ? rope_.positions() : 0)) * rope.rotary_dim / 2;
    }
    QUAROT_RETURN_IF_ERROR(simulate_page(task, stream));
  }
  return {};
}

}  // namespace quarot::cuda
