#include "base/scratch_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace quarot {

namespace {

std::string folder() {
  const char* chosen = std::getenv("TMPDIR");
  return chosen != nullptr && *chosen != '\0' ? chosen : "/var/tmp";
}

Error no_room(int64_t bytes, int64_t memory_limit, int code) {
  return error(
      ErrorCode::kOutOfMemory,
      "{:.2f} GB needed, {:.2f} GB of memory to be had, and no room for a file in {} ({}): use "
      "less, or set TMPDIR to a folder that has it",
      1e-9 * static_cast<double>(bytes), 1e-9 * static_cast<double>(memory_limit), folder(),
      std::strerror(code));
}

// Without a name and of that size; or the error's negative number.
int open_file(int64_t bytes) {
  std::string name = folder() + "/quarot-XXXXXX";
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) return -errno;
  ::unlink(name.c_str());
  const int code = ::posix_fallocate(fd, 0, bytes);
  if (code == 0) return fd;
  ::close(fd);
  return -code;
}

}  // namespace

ScratchMemory::~ScratchMemory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

Result<ScratchMemory> ScratchMemory::make(int64_t bytes, int64_t memory_limit) {
  ScratchMemory memory;
  if (bytes == 0) return memory;
  memory.on_disk_ = bytes > memory_limit;
  int fd = -1;
  if (memory.on_disk_) {
    fd = open_file(bytes);
    if (fd < 0) return no_room(bytes, memory_limit, -fd);
  }
  const int kind = memory.on_disk_ ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, kind, fd, 0);
  const int code = errno;
  if (fd >= 0) ::close(fd);
  if (data == MAP_FAILED) return no_room(bytes, memory_limit, code);
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

}  // namespace quarot
