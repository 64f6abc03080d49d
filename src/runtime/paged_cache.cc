#include "runtime/paged_cache.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/memory.h"

namespace quarot {

namespace {

void free_aligned(std::byte* page) { ::operator delete[](page, std::align_val_t{kAlignment}); }

int64_t page_count(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace

int PagedCache::add_sequence() {
  auto slot = std::ranges::find(sequences_, false, &Sequence::used);
  if (slot == sequences_.end()) slot = sequences_.insert(slot, Sequence());
  slot->used = true;
  return static_cast<int>(slot - sequences_.begin());
}

int PagedCache::fork_sequence(int sequence, int64_t tokens) {
  const int fork = add_sequence();
  const std::vector<std::byte*>& pages = sequences_[static_cast<size_t>(sequence)].pages;
  sequences_[static_cast<size_t>(fork)].pages.assign(pages.begin(),
                                                     pages.begin() + page_count(tokens));
  for (std::byte* page : sequences_[static_cast<size_t>(fork)].pages) ++sharers_[page];
  return fork;
}

void PagedCache::drop_sequence(int sequence) {
  Sequence& dropped = sequences_[static_cast<size_t>(sequence)];
  for (std::byte* page : dropped.pages) release(page);
  dropped = Sequence();
}

std::byte* const* PagedCache::reserve(int sequence, int64_t position, int64_t tokens) {
  std::vector<std::byte*>& pages = sequences_[static_cast<size_t>(sequence)].pages;
  const auto first = static_cast<size_t>(position / kPageTokens);
  for (size_t i = first; i < pages.size() && !sharers_.empty(); ++i) {
    if (!sharers_.contains(pages[i])) continue;
    std::byte* own = take_page();
    std::memcpy(own, pages[i], static_cast<size_t>(page_bytes_));
    release(pages[i]);
    pages[i] = own;
  }
  while (std::ssize(pages) < page_count(tokens)) pages.push_back(take_page());
  return pages.data();
}

void PagedCache::release(std::byte* page) {
  const auto shared = sharers_.find(page);
  if (shared == sharers_.end()) {
    free_.push_back(page);
  } else if (--shared->second == 0) {
    sharers_.erase(shared);
  }
}

std::byte* PagedCache::take_page() {
  std::byte* page = nullptr;
  if (free_.empty()) {
    page = static_cast<std::byte*>(
        ::operator new[](static_cast<size_t>(page_bytes_), std::align_val_t{kAlignment}));
    pages_.emplace_back(page, free_aligned);
  } else {
    page = free_.back();
    free_.pop_back();
  }
  std::memset(page, 0, static_cast<size_t>(page_bytes_));  // the kernels ask for it
  return page;
}

}  // namespace quarot
