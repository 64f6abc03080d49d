// Device memory that grows where it stands: a range of addresses is set aside once, and memory put
// behind it as it is needed, so that nothing is copied, no pointer changes, and what was there and
// what is added need not both fit twice. CUDA driver API, "Virtual Memory Management".
#pragma once

#include <cstdint>
#include <utility>

#include "base/error.h"

namespace quarot::cuda {

class GrowingMemory {
 public:
  GrowingMemory() = default;
  GrowingMemory(GrowingMemory&& other) noexcept { swap(other); }
  GrowingMemory& operator=(GrowingMemory&& other) noexcept {
    GrowingMemory(std::move(other)).swap(*this);
    return *this;
  }
  ~GrowingMemory();

  // Addresses for up to `limit` bytes on the current device, and no memory yet.
  static Result<GrowingMemory> reserve(int64_t limit, const char* what);

  // Memory behind the first `bytes` bytes at least, new parts uninitialised. kOutOfMemory, with the
  // numbers, where there is none; then all is as it was.
  Status grow(int64_t bytes, const char* what);

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int64_t granularity() const { return granularity_; }  // which bytes() is a multiple of
  void swap(GrowingMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(limit_, other.limit_);
    std::swap(granularity_, other.granularity_);
  }

 private:
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t limit_ = 0;
  int64_t granularity_ = 1;
};

}  // namespace quarot::cuda
