#include "runtime/cuda/page_pool.h"

#include <algorithm>
#include <utility>

namespace quarot::cuda {

namespace {

constexpr int64_t kLeastPages = 32;

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

Result<bool> PagePool::reserve(int sequence, int64_t position, int64_t tokens,
                               cudaStream_t stream) {
  PageList& pages = sequences_[static_cast<size_t>(sequence)].pages;
  const auto first = pages.begin() + std::min<int64_t>(position / kPageTokens, std::ssize(pages));
  const auto is_shared = [&](int32_t page) { return sharers_.contains(page); };
  const int64_t missing = std::max<int64_t>(page_count(tokens) - std::ssize(pages), 0);
  const int64_t needed = missing + std::count_if(first, pages.end(), is_shared);
  const bool moves = needed > std::ssize(free_);
  if (moves) {
    const int64_t least = capacity_ + needed - std::ssize(free_);
    QUAROT_RETURN_IF_ERROR(grow(std::max({least, capacity_ + capacity_ / 4, kLeastPages}), stream));
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
  return moves;
}

// In every layer.
Status PagePool::copy(int32_t from, int32_t to, cudaStream_t stream) {
  const auto pitch = static_cast<size_t>(capacity_ * page_bytes_);
  const auto bytes = static_cast<size_t>(page_bytes_);
  return check(cudaMemcpy2DAsync(memory_.data() + to * page_bytes_, pitch,
                                 memory_.data() + from * page_bytes_, pitch, bytes,
                                 static_cast<size_t>(layers_), cudaMemcpyDeviceToDevice, stream),
               "KV cache");
}

Status PagePool::grow(int64_t pages, cudaStream_t stream) {
  QUAROT_ASSIGN_OR_RETURN(DeviceArray<uint8_t> grown,
                          DeviceArray<uint8_t>::make(layers_ * pages * page_bytes_, "KV cache"));
  QUAROT_RETURN_IF_ERROR(check(
      cudaMemsetAsync(grown.data(), 0, static_cast<size_t>(grown.bytes()), stream), "KV cache"));
  const auto old_bytes = static_cast<size_t>(capacity_ * page_bytes_);
  if (old_bytes > 0) {
    QUAROT_RETURN_IF_ERROR(
        check(cudaMemcpy2DAsync(grown.data(), static_cast<size_t>(pages * page_bytes_),
                                memory_.data(), old_bytes, old_bytes, static_cast<size_t>(layers_),
                                cudaMemcpyDeviceToDevice, stream),
              "KV cache"));
  }
  QUAROT_RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "KV cache"));
  memory_ = std::move(grown);
  PageList added;  // the lowest last: it is taken first
  for (int64_t page = pages - 1; page >= capacity_; --page) {
    added.push_back(static_cast<int32_t>(page));
  }
  free_.insert(free_.begin(), added.begin(), added.end());
  capacity_ = pages;
  return {};
}

}  // namespace quarot::cuda
