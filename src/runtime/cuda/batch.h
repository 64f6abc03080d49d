// A batch on the GPU: what its tokens are, where they stand, and where their keys and values lie.
#pragma once

#include <vector>

#include "model/config.h"
#include "runtime/backend.h"
#include "runtime/cuda/device.h"

namespace quarot::cuda {

// Pages of a sequence, page i that of tokens i · kPageTokens on.
using PageList = std::vector<int32_t>;

// Consecutive chunks for one launch of attention: all of one token, or all of more.
struct ChunkRun {
  int64_t first = 0;  // chunk
  int64_t count = 0;
  int64_t first_row = 0;  // of the batch
  int64_t longest = 0;    // tokens of a chunk

  bool decodes() const { return longest == 1; }
};

// All in one piece of memory, written by one copy. Every pointer is valid until the next upload.
class DeviceBatch {
 public:
  DeviceBatch() = default;
  DeviceBatch(const DeviceBatch&) = delete;
  DeviceBatch& operator=(const DeviceBatch&) = delete;
  ~DeviceBatch();

  // `pages` of each chunk's sequence, or none at all; `long_rope` says for each chunk whether it
  // turns by the long frequencies, whose rows in the table begin at `long_rows`. True: memory
  // moved.
  Result<bool> upload(const Batch& batch, std::span<const PageList* const> pages,
                      const RopeConfig& rope, int64_t long_rows, cudaStream_t stream);

  int64_t rows() const { return rows_; }
  int64_t chunks() const { return chunks_; }
  const std::vector<ChunkRun>& runs() const { return runs_; }
  // Whether every chunk is one token.
  bool decodes() const { return rows_ == chunks_; }
  // Of the longest sequence, with its new tokens.
  int64_t longest() const { return longest_; }
  // At least that: few different values as sequences grow.
  int64_t max_length() const { return max_length_; }
  int64_t table_stride() const { return table_stride_; }

  const int32_t* tokens() const { return at(0); }         // [row]
  const int32_t* positions() const { return at(rows_); }  // [row]
  const int32_t* rope_rows() const { return at(2 * rows_); }
  const int32_t* chunk_of_row() const { return at(3 * rows_); }
  const int32_t* lengths(int64_t chunk) const { return at(4 * rows_ + chunk); }
  const int32_t* starts(int64_t chunk) const { return at(4 * rows_ + chunks_ + chunk); }
  const int32_t* page_table(int64_t chunk) const {
    return at(4 * rows_ + 2 * chunks_ + 1 + chunk * table_stride_);
  }

 private:
  const int32_t* at(int64_t offset) const { return memory_.data() + offset; }

  int64_t rows_ = 0;
  int64_t chunks_ = 0;
  int64_t longest_ = 0;
  int64_t max_length_ = 0;
  int64_t table_stride_ = 0;
  std::vector<ChunkRun> runs_;
  DeviceArray<int32_t> memory_;
  // Page-locked, two in turn, so that the next batch is written while the last one is copied.
  struct Staging {
    int32_t* memory = nullptr;
    int64_t size = 0;
    cudaEvent_t copied = nullptr;
  };
  Result<Staging*> staging(int64_t size);
  Staging staging_[2];
  int turn_ = 0;
};

// (cos, sin) of every position and frequency; where the model has long frequencies, those in as
// many further rows.
class RopeTable {
 public:
  // Rows for at least so many positions. True: memory moved.
  Result<bool> reserve(const RopeConfig& rope, int64_t positions);

  const float2* data() const { return table_.data(); }
  int64_t positions() const { return positions_; }

 private:
  DeviceArray<float2> table_;
  int64_t positions_ = 0;
};

}  // namespace quarot::cuda
