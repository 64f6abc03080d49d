#include "runtime/cuda/page_pool.h"

#include <algorithm>
#include <utility>

#include "runtime/cuda/device.h"

namespace quarot::cuda {

namespace {

constexpr int64_t kGrowth = 16;  // by at least one in so many pages: growing takes milliseconds

constexpr const char* kWhat = "KV cache";

int64_t page_count(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace

int PagePool::add_sequence() {
  auto slot = std::ranges::find(sequences_, false, &Sequence::used);
  if (slot == sequences_.end()) slot = sequences_.insert(slot, Sequence());
  slot->used = true;
  return static_cast<int>(slot - sequences_.begin());
}

int PagePool::fork_sequence(int sequence, int64_t tokens) {
  const int fork = add_sequence();
  const PageList& pages = sequences_[static_cast<size_t>(sequence)].pages;
  PageList& shared = sequences_[static_cast<size_t>(fork)].pages;
  shared.assign(pages.begin(), pages.begin() + page_count(tokens));
  for (const int32_t page : shared) ++sharers_[page];
  return fork;
}

void PagePool::drop_sequence(int sequence) {
  Sequence& dropped = sequences_[static_cast<size_t>(sequence)];
  std::for_each(dropped.pages.rbegin(), dropped.pages.rend(), [&](int32_t page) { release(page); });
  dropped = Sequence();
}

void PagePool::release(int32_t page) {
  const auto shared = sharers_.find(page);
  if (shared == sharers_.end()) {
    free_.push_back(page);
  } else if (--shared->second == 0) {
    sharers_.erase(shared);
  }
}

Status PagePool::reserve(int sequence, int64_t position, int64_t tokens, cudaStream_t stream) {
  PageList& pages = sequences_[static_cast<size_t>(sequence)].pages;
  const auto first = pages.begin() + std::min<int64_t>(position / kPageTokens, std::ssize(pages));
  const auto is_shared = [&](int32_t page) { return sharers_.contains(page); };
  const int64_t missing = std::max<int64_t>(page_count(tokens) - std::ssize(pages), 0);
  const int64_t needed = missing + std::count_if(first, pages.end(), is_shared);
  if (needed > std::ssize(free_)) {
    const int64_t least = capacity_ + needed - std::ssize(free_);
    QUAROT_RETURN_IF_ERROR(grow(std::max(least, capacity_ + capacity_ / kGrowth), stream));
  }
  const auto take = [&] {
    const int32_t page = free_.back();
    free_.pop_back();
    return page;
  };
  for (auto page = first; page != pages.end(); ++page) {
    if (!is_shared(*page)) continue;
    const int32_t own = take();
    QUAROT_RETURN_IF_ERROR(copy(*page, own, stream));
    release(std::exchange(*page, own));
  }
  for (int64_t i = 0; i < missing; ++i) pages.push_back(take());
  return {};
}

// In every layer.
Status PagePool::copy(int32_t from, int32_t to, cudaStream_t stream) {
  for (const GrowingMemory& pool : pools_) {
    QUAROT_RETURN_IF_ERROR(
        check(cudaMemcpyAsync(pool.data() + to * page_bytes_, pool.data() + from * page_bytes_,
                              static_cast<size_t>(page_bytes_), cudaMemcpyDeviceToDevice, stream),
              kWhat));
  }
  return {};
}

Status PagePool::grow(int64_t pages, cudaStream_t stream) {
  if (pools_.empty()) {
    QUAROT_ASSIGN_OR_RETURN(const int64_t all, total_bytes());
    std::vector<GrowingMemory> pools(static_cast<size_t>(layers_));
    for (GrowingMemory& pool : pools) {
      QUAROT_ASSIGN_OR_RETURN(pool, GrowingMemory::reserve(all / layers_, kWhat));
    }
    pools_ = std::move(pools);
  }
  const int64_t unit = pools_.front().granularity();
  const int64_t bytes = (pages * page_bytes_ + unit - 1) / unit * unit;
  QUAROT_RETURN_IF_ERROR(check_memory((bytes - pools_.back().bytes()) * layers_, kWhat));
  for (GrowingMemory& pool : pools_) {
    const int64_t before = pool.bytes();
    QUAROT_RETURN_IF_ERROR(pool.grow(bytes, kWhat));
    QUAROT_RETURN_IF_ERROR(
        check(cudaMemsetAsync(pool.data() + before, 0, static_cast<size_t>(pool.bytes() - before),
                              stream),
              kWhat));
  }
  PageList added;  // the lowest last: it is taken first
  const int64_t capacity = bytes / page_bytes_;
  for (int64_t page = capacity - 1; page >= capacity_; --page) {
    added.push_back(static_cast<int32_t>(page));
  }
  free_.insert(free_.begin(), added.begin(), added.end());
  capacity_ = capacity;
  return {};
}

}  // namespace quarot::cuda
