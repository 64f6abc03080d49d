// The pages of the quantised KV cache on the GPU: one pool a layer
// (kernels/cuda/attention/kv_page.h), the same page numbers in all of them, handed to sequences as
// they grow. A pool grows where it stands.
#pragma once

#include <unordered_map>
#include <vector>

#include "kernels/cuda/attention/kv_page.h"
#include "runtime/cuda/batch.h"
#include "runtime/cuda/growing_memory.h"

namespace quarot::cuda {

class PagePool {
 public:
  PagePool(const PageLayout& layout, int64_t layers, int64_t kv_heads)
      : layout_(layout), layers_(layers), page_bytes_(kv_heads * layout.block_bytes()) {}

  const PageLayout& layout() const { return layout_; }

  int add_sequence();
  int fork_sequence(int sequence, int64_t tokens);  // one that shares the pages of the first tokens
  void drop_sequence(int sequence);

  // Pages for the sequence's first `tokens` tokens, its own from the one that holds `position` on.
  Status reserve(int sequence, int64_t position, int64_t tokens, cudaStream_t stream);
  const PageList& pages(int sequence) const {
    return sequences_[static_cast<size_t>(sequence)].pages;
  }

  // The same from the first reserve() on.
  uint8_t* layer(int64_t index) { return pools_[static_cast<size_t>(index)].data(); }
  int64_t bytes() const { return pools_.empty() ? 0 : layers_ * pools_.back().bytes(); }

 private:
  struct Sequence {
    bool used = false;
    PageList pages;
  };
  Status grow(int64_t pages, cudaStream_t stream);
  void release(int32_t page);
  Status copy(int32_t from, int32_t to, cudaStream_t stream);

  PageLayout layout_;
  int64_t layers_;
  int64_t page_bytes_;
  std::vector<GrowingMemory> pools_;  // [layer]
  int64_t capacity_ = 0;              // pages
  PageList free_;
  std::unordered_map<int32_t, int> sharers_;  // sequences that hold a page beside the first
  std::vector<Sequence> sequences_;
};

}  // namespace quarot::cuda
