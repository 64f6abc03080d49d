#include "runtime/paged_cache.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/memory.h"

namespace quarot {

namespace {

void free_aligned(std::byte* page) { ::operator delete[](page, std::align_val_t{kAlignment}); }

}  // namespace

int PagedCache::add_sequence() {
  auto slot = std::ranges::find(sequences_, false, &Sequence::used);
  if (slot == sequences_.end()) slot = sequences_.insert(slot, Sequence());
  slot->used = true;
  return static_cast<int>(slot - sequences_.begin());
}

void PagedCache::drop_sequence(int sequence) {
  Sequence& dropped = sequences_[static_cast<size_t>(sequence)];
  free_.insert(free_.end(), dropped.pages.begin(), dropped.pages.end());
  dropped = Sequence();
}

std::byte* const* PagedCache::reserve(int sequence, int64_t tokens) {
  Sequence& grown = sequences_[static_cast<size_t>(sequence)];
  const auto wanted = static_cast<size_t>((tokens + kPageTokens - 1) / kPageTokens);
  while (grown.pages.size() < wanted) grown.pages.push_back(take_page());
  return grown.pages.data();
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
