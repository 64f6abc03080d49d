// Working memory that may be larger than the machine's: behind it, where it would not fit, a file
// without a name, which the system writes and reads page by page and forgets with the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace quarot {

class ScratchMemory {
 public:
  ScratchMemory() = default;
  ScratchMemory(ScratchMemory&& other) noexcept { swap(other); }
  ScratchMemory& operator=(ScratchMemory&& other) noexcept {
    ScratchMemory(std::move(other)).swap(*this);
    return *this;
  }
  ~ScratchMemory();

  // Bytes of zeros, on pages of their own: in memory up to `memory_limit`, else in $TMPDIR, or
  // /var/tmp without it. kOutOfMemory, with the numbers, where neither has room: all of a file is
  // set aside at once, so that no later write can find the disk full.
  static Result<ScratchMemory> make(int64_t bytes, int64_t memory_limit);

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  bool on_disk() const { return on_disk_; }
  void swap(ScratchMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(on_disk_, other.on_disk_);
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  bool on_disk_ = false;
};

}  // namespace quarot
