#include "runtime/cuda/batch.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/parallel.h"
#include "kernels/cuda/attention/kv_page.h"

namespace quarot::cuda {

namespace {

constexpr int64_t kLeastLength = 512;

std::vector<ChunkRun> runs_of(const std::vector<SequenceChunk>& chunks) {
  std::vector<ChunkRun> runs;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const int64_t count = chunks[i].count;
    if (runs.empty() || runs.back().decodes() != (count == 1)) {
      runs.push_back({static_cast<int64_t>(i), 0, chunks[i].first_row, count});
    }
    ++runs.back().count;
    runs.back().longest = std::max(runs.back().longest, count);
  }
  return runs;
}

}  // namespace

DeviceBatch::~DeviceBatch() {
  for (Staging& staging : staging_) {
    cudaFreeHost(staging.memory);
    if (staging.copied != nullptr) cudaEventDestroy(staging.copied);
  }
}

Result<DeviceBatch::Staging*> DeviceBatch::staging(int64_t size) {
  Staging& staging = staging_[turn_];
  turn_ = 1 - turn_;
  if (staging.copied == nullptr) {
    QUAROT_RETURN_IF_ERROR(check(cudaEventCreateWithFlags(&staging.copied, cudaEventDisableTiming),
                                 "cudaEventCreate"));
  }
  QUAROT_RETURN_IF_ERROR(check(cudaEventSynchronize(staging.copied), "the last batch"));
  if (size > staging.size) {
    cudaFreeHost(std::exchange(staging.memory, nullptr));
    void* memory = nullptr;
    QUAROT_RETURN_IF_ERROR(
        check(cudaMallocHost(&memory, static_cast<size_t>(2 * size) * sizeof(int32_t)),
              "page-locked memory"));
    staging.memory = static_cast<int32_t*>(memory);
    staging.size = 2 * size;
  }
  return &staging;
}

Result<bool> DeviceBatch::upload(const Batch& batch, std::span<const PageList* const> pages,
                                 const RopeConfig& rope, int64_t long_rows, cudaStream_t stream) {
  rows_ = batch.rows();
  chunks_ = static_cast<int64_t>(batch.chunks.size());
  runs_ = runs_of(batch.chunks);
  longest_ = 0;
  for (const SequenceChunk& chunk : batch.chunks) {
    longest_ = std::max(longest_, chunk.position + chunk.count);
  }
  max_length_ =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(longest_, kLeastLength))));
  table_stride_ = pages.empty() ? 0 : max_length_ / kPageTokens;

  const int64_t size = 4 * rows_ + 2 * chunks_ + 1 + chunks_ * table_stride_;
  QUAROT_ASSIGN_OR_RETURN(const bool moved, memory_.grow(size, "a batch"));
  QUAROT_ASSIGN_OR_RETURN(Staging* const host, staging(size));
  int32_t* tokens = host->memory;
  int32_t* lengths = tokens + 4 * rows_;
  int32_t* starts = lengths + chunks_;
  int32_t* table = starts + chunks_ + 1;
  std::ranges::copy(batch.tokens, tokens);
  for (int64_t c = 0; c < chunks_; ++c) {
    const SequenceChunk& chunk = batch.chunks[static_cast<size_t>(c)];
    const int64_t end = chunk.position + chunk.count;
    const bool is_long = &rope.frequencies(chunk.known_length()) != &rope.inverse_frequency;
    for (int64_t i = 0; i < chunk.count; ++i) {
      const int64_t row = chunk.first_row + i;
      const auto position = static_cast<int32_t>(chunk.position + i);
      tokens[rows_ + row] = position;
      tokens[2 * rows_ + row] = position + static_cast<int32_t>(is_long ? long_rows : 0);
      tokens[3 * rows_ + row] = static_cast<int32_t>(c);
    }
    lengths[c] = static_cast<int32_t>(end);
    starts[c] = static_cast<int32_t>(chunk.first_row);
    if (!pages.empty()) {
      const PageList& list = *pages[static_cast<size_t>(c)];
      const auto count = std::min<int64_t>(std::ssize(list), table_stride_);
      std::copy_n(list.begin(), count, table + c * table_stride_);
      std::fill_n(table + c * table_stride_ + count, table_stride_ - count, 0);
    }
  }
  starts[chunks_] = static_cast<int32_t>(rows_);
  QUAROT_RETURN_IF_ERROR(check(
      cudaMemcpyAsync(memory_.data(), host->memory, static_cast<size_t>(size) * sizeof(int32_t),
                      cudaMemcpyHostToDevice, stream),
      "a batch"));
  QUAROT_RETURN_IF_ERROR(check(cudaEventRecord(host->copied, stream), "a batch"));
  return moved;
}

Result<bool> RopeTable::reserve(const RopeConfig& rope, int64_t positions) {
  if (positions <= positions_) return false;
  const int64_t half = rope.rotary_dim / 2;
  const auto count =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(positions, kLeastLength))));
  std::vector<const std::vector<double>*> tables = {&rope.inverse_frequency};
  if (!rope.long_inverse_frequency.empty()) tables.push_back(&rope.long_inverse_frequency);
  std::vector<float2> host(tables.size() * static_cast<size_t>(count * half));
  parallel_for(std::ssize(tables) * count, 64, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const std::vector<double>& frequencies = *tables[static_cast<size_t>(row / count)];
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(row % count) * frequencies[static_cast<size_t>(i)];
        host[static_cast<size_t>(row * half + i)] = {
            static_cast<float>(rope.attention_factor * std::cos(angle)),
            static_cast<float>(rope.attention_factor * std::sin(angle))};
      }
    }
  });
  table_ = DeviceArray<float2>();
  QUAROT_ASSIGN_OR_RETURN(table_, DeviceArray<float2>::upload(host, "rotary embeddings"));
  positions_ = count;
  return true;
}

}  // namespace quarot::cuda
