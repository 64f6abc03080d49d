// Memory of the packed KV cache: pages of kPageTokens tokens, all layers and KV heads of them
// together, handed to sequences as they grow and taken back when these end.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/cache_task.h"

namespace quarot {

class PagedCache {
 public:
  PagedCache(const CacheLayout& layout, int64_t heads_in_all)
      : layout_(layout), page_bytes_(heads_in_all * layout.page_bytes()) {}

  const CacheLayout& layout() const { return layout_; }

  int add_sequence();
  int fork_sequence(int sequence, int64_t tokens);  // one that shares the pages of the first tokens
  void drop_sequence(int sequence);                 // its pages become free for others

  // Gives the sequence pages for its first `tokens` tokens, its own from the one that holds
  // `position` on: what it writes there no other sequence sees. The returned pointers stay valid
  // until the next call for the same sequence.
  std::byte* const* reserve(int sequence, int64_t position, int64_t tokens);

  int64_t bytes() const {
    return static_cast<int64_t>(pages_.size()) * page_bytes_;
  }  // of all pages, free ones too

 private:
  struct Sequence {
    bool used = false;
    std::vector<std::byte*> pages;
  };
  std::byte* take_page();
  void release(std::byte* page);

  CacheLayout layout_;
  int64_t page_bytes_;
  std::vector<std::unique_ptr<std::byte[], void (*)(std::byte*)>> pages_;
  std::vector<std::byte*> free_;
  std::unordered_map<std::byte*, int> sharers_;  // sequences that hold a page beside the first
  std::vector<Sequence> sequences_;
};

}  // namespace quarot
